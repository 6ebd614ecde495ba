//! Who waits for whom.

use futures::{FutureExt as _, channel::mpsc};
use http_body_util::{BodyExt as _, StreamBody};

use super::*;

type Frames = StreamBody<mpsc::UnboundedReceiver<Result<Frame<Bytes>, std::io::Error>>>;

fn plugin(name: &str) -> PluginName {
    PluginName::parse(name).unwrap()
}

/// An answer that has come but for its end.
fn coming(sizes: &[usize]) -> Frames {
    let (sender, frames) = mpsc::unbounded();
    for size in sizes {
        sender.unbounded_send(Ok(Frame::data(vec![0; *size].into()))).unwrap();
    }
    // Its end never comes.
    std::mem::forget(sender);
    StreamBody::new(frames)
}

/// Whether there is more to read now.
fn reads<B: Body<Data = Bytes, Error = BoxError> + Unpin>(body: &mut B) -> bool {
    body.frame().now_or_never().is_some_and(|frame| frame.unwrap().is_ok())
}

#[tokio::test]
async fn a_plugin_reads_one_large_answer_at_a_time_and_all_together_two() {
    let answers = Answers::default();
    let turn = |name: &str| answers.turn(&plugin(name)).now_or_never().unwrap();
    let large = |name: &str| {
        let mut body = Measured::whole(coming(&[SMALL + 1, 1, 1]), Some(turn(name)));
        assert!(reads(&mut body), "what it begins with is read");
        body
    };
    let (mut first, mut second, mut other, mut third) = (large("a"), large("a"), large("b"), large("c"));
    assert!(reads(&mut first) && reads(&mut other), "two are read");
    assert!(!reads(&mut second), "its plugin reads another");
    assert!(!reads(&mut third), "two others are read");
    assert!(reads(&mut first), "whoever has the turn keeps it");
    assert!(reads(&mut Measured::whole(coming(&[SMALL, 1]), Some(turn("d")))), "what is small waits for nobody");
    let mut exact = Measured::whole(coming(&[SMALL, 1]), Some(turn("d")));
    assert!(reads(&mut exact) && reads(&mut exact), "nor does what is just small");
    let mut own = Measured::whole(coming(&[SMALL + 1, 1]), None);
    assert!(reads(&mut own) && reads(&mut own), "nor the host itself");
    drop(first);
    assert!(!reads(&mut second), "a plugin's next one goes to the end of the line");
    assert!(reads(&mut third), "of all the one that came first is next");
    drop(other);
    assert!(reads(&mut second));
}

#[tokio::test]
async fn more_requests_than_a_plugin_has_places_for_wait() {
    let answers = Answers::default();
    let turn = |name: &str| answers.turn(&plugin(name)).now_or_never();
    let mut turns: Vec<_> = (0..AT_ONCE).map(|_| turn("a").unwrap()).collect();
    assert!(turn("a").is_none(), "all its places are taken");
    assert!(turn("b").is_some(), "another plugin has its own");
    assert!(turn("a").is_none(), "and who comes new makes nobody forget who is there");
    turns.pop();
    let last = Measured::whole(coming(&[]), turn("a"));
    assert!(turn("a").is_none());
    drop(last);
    assert!(turn("a").is_some(), "the place is free when the answer is read");
}

#[tokio::test]
async fn an_answer_has_an_end_and_a_stream_has_none() {
    let mut body = Measured::whole(coming(&[MOST, 1]), None);
    assert!(reads(&mut body), "as much as is read");
    let error = body.frame().await.unwrap().unwrap_err();
    assert!(error.is::<TooLarge>() && error.to_string().contains("64 MiB"), "{error}");
    let mut stream = Measured::stream(coming(&[MOST, 1, 1]));
    assert!(reads(&mut stream) && reads(&mut stream) && reads(&mut stream));
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
