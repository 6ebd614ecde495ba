//! Guests that compute, and what they cost those beside them.

use std::sync::{Barrier, atomic::AtomicBool};

use tokio::time::timeout;

use super::*;
use crate::meter::metered;

/// On which kind of thread it runs, and whether that is for what is left.
fn place() -> (String, bool) {
    (thread::current().name().unwrap().to_owned(), thread_schedule_policy().unwrap() == IDLE)
}

/// Ready again at once.
async fn turn() {
    tokio::task::yield_now().await;
}

fn compute(long: Duration) {
    let began = Instant::now();
    while began.elapsed() < long {
        std::hint::spin_loop();
    }
}

/// Where a guest runs that computes little.
async fn run(guests: &Guests, share: &Arc<Share>) -> (String, bool) {
    let meter = Meter::new(Duration::MAX);
    guests.run(share, Arc::clone(&meter), metered(meter, async { place() })).await.unwrap().unwrap()
}

fn prompt() -> (String, bool) {
    ("guest".to_owned(), false)
}

#[tokio::test]
async fn what_computes_a_lot_goes_on_patiently_and_its_neighbour_at_once() {
    let guests = Guests::start().unwrap();
    let (hungry, neighbour) = (guests.share(), guests.share());
    assert_eq!(run(&guests, &hungry).await, prompt());
    let meter = Meter::new(Duration::MAX);
    // By turns where it starves, on a machine that others keep busy.
    let computes = async {
        while place() == prompt() {
            compute(Duration::from_millis(1));
            turn().await;
        }
        place()
    };
    let computes = guests.run(&hungry, Arc::clone(&meter), metered(meter, computes));
    let place = timeout(Duration::from_mins(1), computes).await.unwrap().unwrap().unwrap();
    assert_eq!(place, ("guest-patient".to_owned(), true));
    assert_eq!(run(&guests, &neighbour).await, prompt());
}

/// Threads of the host's own priority that leave nothing over, until dropped.
struct Busy(Arc<AtomicBool>);

impl Busy {
    fn start() -> Self {
        let over = Arc::new(AtomicBool::new(false));
        for _ in 0..2 * thread::available_parallelism().unwrap().get() {
            let over = Arc::clone(&over);
            thread::spawn(move || while !over.load(Ordering::Relaxed) {});
        }
        Self(over)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn what_computes_a_lot_gets_on_while_others_keep_the_machine_busy_and_is_patient_when_they_do_not() {
    let guests = Guests::start().unwrap();
    let hungry = guests.share();
    let busy = Busy::start();
    let computes = async {
        let mut held = 0;
        for _ in 0..100 {
            held += u32::from(place() != prompt());
            let end = thread_cpu() + Duration::from_millis(2);
            while thread_cpu() < end {}
            turn().await;
        }
        drop(busy);
        while place() == prompt() {
            compute(Duration::from_millis(2));
            turn().await;
        }
        held
    };
    let meter = Meter::new(Duration::MAX);
    let computes = guests.run(&hungry, Arc::clone(&meter), metered(meter, computes));
    let held = timeout(Duration::from_mins(2), computes).await.unwrap().unwrap().unwrap();
    assert!(held < 4, "{held} of 100 turns were on patient threads, which get nothing");
}

#[tokio::test]
async fn what_computes_a_lot_waits_with_its_calls_while_others_are_at_work() {
    let guests = Guests::start().unwrap();
    let (hungry, neighbour) = (guests.share(), guests.share());
    let computes = async {
        loop {
            compute(Duration::from_millis(1));
            turn().await;
        }
    };
    let meter = Meter::new(Duration::MAX);
    let computes = guests.run(&hungry, Arc::clone(&meter), metered(meter, computes));
    let scarce = async {
        while !hungry.outside.is_scarce() {
            run(&guests, &neighbour).await;
        }
    };
    tokio::select! {
        never = computes => never.unwrap().unwrap(),
        scarce = timeout(Duration::from_mins(1), scarce) => scarce.unwrap(),
    }
    assert!(!neighbour.outside.is_scarce());
}

#[tokio::test]
async fn a_guest_that_is_no_longer_waited_for_ends_and_so_do_those_of_a_host_that_stops() {
    struct Ended(Arc<AtomicUsize>);
    impl Drop for Ended {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let guests = Arc::new(Guests::start().unwrap());
    let (share, ended) = (guests.share(), Arc::new(AtomicUsize::new(0)));
    let waits = |ended: &Arc<AtomicUsize>| {
        let (guests, share, ended) = (Arc::clone(&guests), Arc::clone(&share), Ended(Arc::clone(ended)));
        async move {
            let guest = async move {
                let _ended = ended;
                loop {
                    compute(Duration::from_micros(10));
                    turn().await;
                }
            };
            let () = guests.run(&share, Meter::new(Duration::MAX), guest).await.unwrap();
        }
    };
    assert!(timeout(Duration::from_millis(20), waits(&ended)).await.is_err());
    let gone = async || {
        while ended.load(Ordering::SeqCst) == 0 || guests.tasks() > 0 {
            turn().await;
        }
    };
    timeout(Duration::from_secs(10), gone()).await.unwrap();

    let guests = Guests::start().unwrap();
    let share = guests.share();
    let (began, wait) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (inner_began, inner_wait) = (Arc::clone(&began), Arc::clone(&wait));
    let guest = async move {
        inner_began.wait();
        inner_wait.wait();
        turn().await;
    };
    let meter = Meter::new(Duration::MAX);
    let mut running = Box::pin(async { (guests.run(&share, meter, guest).await, ()) });
    assert!((&mut running).now_or_never().is_none());
    began.wait();
    guests.close();
    wait.wait();
    let (cut_off, ()) = timeout(Duration::from_secs(10), running).await.unwrap();
    assert!(cut_off.unwrap_err().to_string().contains("the host stops"));
}

#[tokio::test]
async fn a_panic_is_an_error_of_that_guest_alone() {
    let guests = Guests::start().unwrap();
    let share = guests.share();
    for _ in 0..20 {
        let panics = async { panic!("as it must") };
        let cut_off = guests.run(&share, Meter::new(Duration::MAX), panics).await;
        let why: Result<(), _> = cut_off;
        assert!(why.unwrap_err().to_string().contains("panicked"));
        assert_eq!(run(&guests, &share).await, prompt());
    }
    assert_eq!(guests.tasks(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_guest_is_forgotten() {
    let guests = Arc::new(Guests::start().unwrap());
    let shares: Vec<_> = (0..3).map(|_| guests.share()).collect();
    let tasks: Vec<_> = (0..300_u64)
        .map(|number| {
            let (guests, share) = (Arc::clone(&guests), Arc::clone(&shares[usize::try_from(number).unwrap() % 3]));
            tokio::spawn(async move {
                let guest = async move {
                    for step in 0..20 {
                        if (number + step) % 7 == 0 {
                            tokio::time::sleep(Duration::from_micros(50)).await;
                        }
                        compute(Duration::from_micros(number % 5 * 10));
                        turn().await;
                    }
                    number
                };
                guests.run(&share, Meter::new(Duration::MAX), guest).await.unwrap()
            })
        })
        .collect();
    let all = async {
        for (number, task) in (0..).zip(tasks) {
            assert_eq!(task.await.unwrap(), number);
        }
    };
    timeout(Duration::from_mins(1), all).await.unwrap();
    assert_eq!(guests.tasks(), 0);
}
