//! Who waits for whom.

use futures::{FutureExt as _, channel::mpsc};
use http_body_util::StreamBody;
use tokio::{task::JoinHandle, time::sleep};

use super::*;

type Part = Result<Frame<Bytes>, std::io::Error>;
type Sender = mpsc::UnboundedSender<Part>;
type Reading = JoinHandle<Result<Answer<StreamBody<mpsc::UnboundedReceiver<Part>>>, BoxError>>;

fn plugin(name: &str) -> PluginName {
    PluginName::parse(name).unwrap()
}

/// An answer that begins with so many bytes, and is read.
fn begin(bytes: usize, turn: Option<Turn>) -> (Sender, Reading) {
    let (sender, frames) = mpsc::unbounded();
    sender.unbounded_send(Ok(Frame::data(vec![0; bytes].into()))).unwrap();
    (sender, tokio::spawn(read(StreamBody::new(frames), turn)))
}

/// Whether it is read to its end now, which comes.
async fn ends((sender, reading): (Sender, &mut Reading)) -> bool {
    drop(sender);
    sleep(STALLED / 10).await;
    reading.is_finished()
}

#[tokio::test(start_paused = true)]
async fn a_plugin_reads_one_large_answer_at_a_time_and_all_together_two() {
    let answers = Answers::default();
    let turn = async |name: &str, purpose| answers.turn(&plugin(name), purpose).await.unwrap();
    let large = async |name: &str| begin(SMALL + 1, turn(name, None).await);
    let (first, other) = (large("a").await, large("b").await);
    sleep(STALLED / 10).await;
    let (second, third) = (large("a").await, large("c").await);
    let cache = begin(SMALL + 1, turn("a", Some(Purpose::Cache)).await);
    let ((s2, mut second), (s3, mut third), (sc, mut cache)) = (second, third, cache);
    assert!(!ends((s2, &mut second)).await, "its plugin reads another");
    assert!(!ends((s3, &mut third)).await, "two others are read");
    assert!(!ends((sc, &mut cache)).await, "a cache is in the line of all");
    for (bytes, turn) in
        [(SMALL, turn("a", None).await), (SMALL + 1, None), (SMALL + 1, turn("a", Some(Purpose::Rights)).await)]
    {
        let (sender, mut reading) = begin(bytes, turn);
        assert!(ends((sender, &mut reading)).await, "what is small waits for nobody, nor the host itself");
    }
    let (s1, mut first) = first;
    assert!(ends((s1, &mut first)).await);
    sleep(STALLED / 10).await;
    assert!(
        third.is_finished() && cache.is_finished(),
        "the turn of all goes on, whether somebody takes the answer or not"
    );
    assert!(!second.is_finished(), "its plugin's does not");
    drop(first.await.unwrap().unwrap());
    sleep(STALLED / 10).await;
    assert!(second.is_finished());
    drop(other);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_stalls_lets_others_pass_and_goes_on() {
    let answers = Answers::default();
    let large = async |name: &str| begin(SMALL + 1, answers.turn(&plugin(name), None).await.unwrap());
    let stalled = [large("a").await, large("b").await];
    sleep(STALLED / 10).await;
    let (sender, mut third) = large("c").await;
    assert!(!ends((sender, &mut third)).await);
    sleep(STALLED).await;
    assert!(third.is_finished());
    for (sender, reading) in stalled {
        sender.unbounded_send(Ok(Frame::data(vec![1; 7].into()))).unwrap();
        drop(sender);
        let whole = reading.await.unwrap().unwrap();
        assert_eq!(whole.size_hint().exact(), Some(SMALL as u64 + 8));
        assert_eq!(whole.collect().await.unwrap().to_bytes()[SMALL..], [0, 1, 1, 1, 1, 1, 1, 1]);
    }
}

#[tokio::test(start_paused = true)]
async fn more_requests_than_a_plugin_has_places_for_wait_and_are_refused_in_the_end() {
    let answers = Answers::default();
    let turn = |name: &str| answers.turn(&plugin(name), None).now_or_never().map(Result::unwrap);
    let mut turns: Vec<_> = (0..AT_ONCE).map(|_| turn("a").unwrap()).collect();
    assert!(turn("a").is_none(), "all its places are taken");
    assert!(turn("b").is_some(), "another plugin has its own");
    assert!(turn("a").is_none(), "and who comes new makes nobody forget who is there");
    let error = answers.turn(&plugin("a"), None).await.unwrap_err();
    assert!(error.to_string().contains("32 requests of the plugin are under way"), "{error}");
    let (sender, reading) = begin(1, turns.pop().unwrap());
    drop(sender);
    let answer = reading.await.unwrap().unwrap();
    assert!(turn("a").is_none(), "an answer that nobody takes has its place");
    drop(answer);
    assert!(turn("a").is_some());
}

#[tokio::test]
async fn an_answer_has_an_end() {
    let (sender, reading) = begin(MOST, None);
    drop(sender);
    assert!(reading.await.unwrap().is_ok(), "as much as is read");
    let (_sender, reading) = begin(MOST + 1, None);
    let error = reading.await.unwrap().unwrap_err();
    assert!(error.is::<TooLarge>() && error.to_string().contains("64 MiB"), "{error}");
}

#[test]
fn a_watch_is_known_by_its_query() {
    for (uri, expected) in [
        ("/api/v1/pods?watch=true", true),
        ("/api/v1/pods?a=b&watch=1&c=d", true),
        ("/api/v1/pods", false),
        ("/api/v1/pods?labelSelector=watch%3Dtrue", false),
        ("/api/v1/pods?watch=false", false),
    ] {
        assert_eq!(is_watch(&uri.parse().unwrap()), expected, "{uri}");
    }
}
