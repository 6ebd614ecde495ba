//! Which guest computes next, as a pure structure: the caller says what time it is, and how long each computed.
//!
//! A component that computes a lot is *heavy* until it has rested; see [`super`] for what that means.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use slab::Slab;

/// CPU time in a second that a component may use promptly: a quarter of a core, which is a thousand reconciles of an ordinary operator.
pub(super) const RATE: Duration = Duration::from_millis(250);
/// What it may have saved up of that: some ordinary reconciles at once. A component is not slower for being heavy, as long as the machine has room.
pub(super) const SAVINGS: Duration = Duration::from_millis(5);
/// The most that it may owe. With the rate it says how long it takes until a component that computed for hours counts as one like the others.
const DEBT: Duration = Duration::from_millis(250);
/// A heavy component that got no turn for so long is given one promptly, so that a machine that others keep busy does not starve it.
pub(super) const STARVED: Duration = Duration::from_millis(10);
/// A patient thread that had to wait for so long before it could end a turn tells that others keep the machine busy.
pub(super) const CROWDED: Duration = Duration::from_millis(50);

/// A component that had a turn within this time is at work.
const AT_WORK: Duration = Duration::from_secs(1);

/// A kind of thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// Of the host's own priority.
    Prompt,
    /// Which gets what is left of the machine.
    Patient,
}

/// One of something for each kind.
#[derive(Default)]
pub(super) struct Paces<T> {
    pub prompt: T,
    pub patient: T,
}

impl<T> Paces<T> {
    pub fn of(&self, pace: Pace) -> &T {
        match pace {
            Pace::Prompt => &self.prompt,
            Pace::Patient => &self.patient,
        }
    }

    pub fn of_mut(&mut self, pace: Pace) -> &mut T {
        match pace {
            Pace::Prompt => &mut self.prompt,
            Pace::Patient => &mut self.patient,
        }
    }
}

/// A component, for as long as it has a share.
pub(super) type Id = usize;

/// All components and their guests that are ready.
pub(super) struct Turns<G> {
    components: Slab<Component<G>>,
    /// Those with a guest that is ready.
    line: VecDeque<Id>,
    /// How many guests of one component may compute at the same time.
    abreast: usize,
    /// Others keep the machine busy: what a patient thread takes it may hold for seconds.
    crowded: bool,
}

struct Component<G> {
    ready: VecDeque<G>,
    /// None: it is not held to any rate.
    account: Option<Account>,
    /// Its guests that compute.
    computing: Paces<usize>,
    /// When it last began or ended a turn, or began to wait for one.
    served: Instant,
}

/// CPU time.
struct Account {
    /// That is left, in nanoseconds; a debt when negative.
    left: i64,
    at: Instant,
    heavy: bool,
}

impl<G> Component<G> {
    fn may_run(&self, pace: Pace, abreast: usize, now: Instant) -> bool {
        let Some(account) = &self.account else { return pace == Pace::Prompt };
        let room = self.computing.prompt + self.computing.patient < abreast;
        match pace {
            Pace::Patient => room && account.heavy,
            Pace::Prompt => room && !account.heavy || self.starves_at(abreast).is_some_and(|at| at <= now),
        }
    }

    fn is_heavy(&self) -> bool {
        self.account.as_ref().is_some_and(|account| account.heavy)
    }

    fn charge(&mut self, used: Duration, now: Instant) {
        if let Some(account) = &mut self.account {
            account.charge(used, now);
        }
    }

    /// When it will have had no turn for too long. None: it has one.
    fn starves_at(&self, abreast: usize) -> Option<Instant> {
        // What a patient thread holds may be about to end.
        let patience = if self.computing.patient == 0 { STARVED } else { CROWDED };
        (self.computing.prompt < abreast).then(|| self.served + patience)
    }
}

impl Account {
    fn charge(&mut self, used: Duration, now: Instant) {
        let earned =
            nanos(now.saturating_duration_since(self.at)).saturating_mul(nanos(RATE)) / nanos(Duration::from_secs(1));
        let left = self.left.saturating_add(earned).min(nanos(SAVINGS)).saturating_sub(nanos(used));
        (self.left, self.at) = (left.max(-nanos(DEBT)), now);
        // Not as soon as there is a little: it would be prompt every other moment.
        self.heavy = if self.heavy { left < nanos(SAVINGS) } else { left <= 0 };
    }
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

impl<G> Turns<G> {
    /// For so many cores.
    pub fn new(cores: usize) -> Self {
        Self { components: Slab::new(), line: VecDeque::new(), abreast: (cores / 2).max(1), crowded: false }
    }

    /// A component comes. One that is `trusted` is held to no rate.
    pub fn join(&mut self, trusted: bool, now: Instant) -> Id {
        let account = (!trusted).then(|| Account { left: nanos(SAVINGS), at: now, heavy: false });
        self.components.insert(Component { ready: VecDeque::new(), account, computing: Paces::default(), served: now })
    }

    /// How many guests of one component may compute at the same time.
    pub fn abreast(&self) -> usize {
        self.abreast
    }

    /// It goes; none of its guests is left.
    pub fn leave(&mut self, id: Id) {
        self.components.try_remove(id);
    }

    /// A guest can go on.
    pub fn ready(&mut self, id: Id, guest: G, now: Instant) {
        let Some(component) = self.components.get_mut(id) else { return };
        if component.ready.is_empty() {
            self.line.push_back(id);
            component.served = now;
        }
        component.ready.push_back(guest);
        // What it rested counts.
        component.charge(Duration::ZERO, now);
    }

    /// The first in line that may run on such a thread.
    fn first(&self, pace: Pace, now: Instant) -> Option<usize> {
        if pace == Pace::Patient && self.crowded {
            return None;
        }
        let may_run = |component: &Component<G>| component.may_run(pace, self.abreast, now);
        self.line.iter().position(|id| self.components.get(*id).is_some_and(may_run))
    }

    /// Whether there is one.
    pub fn has(&self, pace: Pace, now: Instant) -> bool {
        self.first(pace, now).is_some()
    }

    /// Its guest, which such a thread lets compute, and says when that is [`Self::done`]. The component goes to the end of the line.
    pub fn next(&mut self, pace: Pace, now: Instant) -> Option<(Id, G)> {
        let id = self.first(pace, now).and_then(|first| self.line.remove(first))?;
        let component = self.components.get_mut(id)?;
        let guest = component.ready.pop_front()?;
        *component.computing.of_mut(pace) += 1;
        component.served = now;
        if !component.ready.is_empty() {
            self.line.push_back(id);
        }
        Some((id, guest))
    }

    /// When the first of those in line that have no turn starves. In line are some; a component that may run at once is among them.
    pub fn starving(&self) -> Option<Instant> {
        self.line.iter().filter_map(|id| self.components.get(*id)?.starves_at(self.abreast)).min()
    }

    /// Whether somebody waits for it to show that patient threads get to compute again.
    pub fn wants_room(&self) -> bool {
        self.crowded && self.line.iter().any(|id| self.components.get(*id).is_some_and(Component::is_heavy))
    }

    /// Whether it is heavy while others are at work.
    pub fn presses(&self, id: Id, now: Instant) -> bool {
        let at_work = |component: &Component<G>| {
            component.account.is_some() && now.saturating_duration_since(component.served) < AT_WORK
        };
        self.components.get(id).is_some_and(Component::is_heavy)
            && self.components.iter().any(|(other, component)| other != id && at_work(component))
    }

    /// A patient thread had to wait for so long while it wanted to compute.
    pub fn waited(&mut self, long: Duration) {
        self.crowded = long >= CROWDED;
    }

    /// A guest computed for so long on such a thread, and waits, is ready again or has ended.
    pub fn done(&mut self, id: Id, pace: Pace, used: Duration, now: Instant) {
        if let Some(component) = self.components.get_mut(id) {
            let computing = component.computing.of_mut(pace);
            *computing = computing.saturating_sub(1);
            component.served = now;
            component.charge(used, now);
        }
    }

    /// All guests that are ready, to be ended.
    pub fn drain(&mut self) -> Vec<G> {
        self.line.clear();
        self.components.iter_mut().flat_map(|(_, component)| component.ready.drain(..)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(2);

    /// Components that always have a guest that is ready, and a time that goes on as they compute.
    struct Machine {
        turns: Turns<&'static str>,
        now: Instant,
    }

    impl Machine {
        fn of(cores: usize) -> Self {
            Self { turns: Turns::new(cores), now: Instant::now() }
        }

        fn component(&mut self) -> Id {
            self.turns.join(false, self.now)
        }

        fn ready(&mut self, id: Id, guest: &'static str) {
            self.turns.ready(id, guest, self.now);
        }

        fn next(&mut self, pace: Pace) -> Option<&'static str> {
            self.turns.next(pace, self.now).map(|(_, guest)| guest)
        }

        /// The next guest computes for a tick, alone.
        fn turn(&mut self, pace: Pace) -> Option<&'static str> {
            let (id, guest) = self.turns.next(pace, self.now)?;
            self.now += TICK;
            self.turns.done(id, pace, TICK, self.now);
            Some(guest)
        }

        /// Whoever is ready again at once computes until it is heavy.
        fn exhaust(&mut self, id: Id) {
            self.ready(id, "hungry");
            while self.turn(Pace::Prompt).is_some() {
                self.ready(id, "hungry");
            }
            assert_eq!(self.turn(Pace::Patient), Some("hungry"));
        }
    }

    #[test]
    fn what_computes_little_is_prompt_and_never_patient() {
        let mut machine = Machine::of(2);
        let id = machine.component();
        for _ in 0..100 {
            machine.ready(id, "guest");
            assert_eq!(machine.next(Pace::Patient), None);
            let (id, _) = machine.turns.next(Pace::Prompt, machine.now).unwrap();
            machine.turns.done(id, Pace::Prompt, TICK, machine.now);
            machine.now += TICK * 5;
        }
    }

    #[test]
    fn what_computes_a_lot_is_patient_until_it_has_rested() {
        let mut machine = Machine::of(2);
        let id = machine.component();
        machine.exhaust(id);
        machine.ready(id, "guest");
        assert!(!machine.turns.has(Pace::Prompt, machine.now) && machine.turns.has(Pace::Patient, machine.now));
        assert_eq!(machine.turn(Pace::Patient), Some("guest"));
        // However long it computed, this long a rest is enough.
        for _ in 0..1_000 {
            machine.ready(id, "guest");
            machine.turn(Pace::Patient);
        }
        machine.now += DEBT * 4;
        machine.ready(id, "guest");
        assert_eq!(machine.turn(Pace::Prompt), None);
        assert_eq!(machine.turn(Pace::Patient), Some("guest"));
        machine.now += SAVINGS * 4 + TICK * 5;
        machine.ready(id, "guest");
        assert_eq!(machine.turn(Pace::Prompt), Some("guest"));
    }

    #[test]
    fn of_one_component_so_many_compute_at_once() {
        let mut machine = Machine::of(4);
        let (id, other) = (machine.component(), machine.component());
        for guest in ["a", "b", "c"] {
            machine.ready(id, guest);
        }
        machine.ready(other, "other");
        let prompt = [(); 4].map(|()| machine.next(Pace::Prompt));
        assert_eq!(prompt, [Some("a"), Some("other"), Some("b"), None]);
        // Nor does a thread take it that may get nothing for a while.
        assert_eq!(machine.next(Pace::Patient), None);
    }

    #[test]
    fn components_take_turns_however_many_guests_each_has() {
        let mut machine = Machine::of(2);
        let (many, few) = (machine.component(), machine.component());
        machine.exhaust(many);
        machine.exhaust(few);
        for _ in 0..3 {
            machine.ready(many, "many");
        }
        machine.ready(few, "few");
        let turns = [(); 5].map(|()| machine.turn(Pace::Patient));
        assert_eq!(turns, [Some("many"), Some("few"), Some("many"), Some("many"), None]);
    }

    #[test]
    fn a_heavy_component_that_nobody_serves_is_served_promptly() {
        let mut machine = Machine::of(2);
        let (id, other) = (machine.component(), machine.component());
        machine.exhaust(id);
        machine.ready(id, "guest");
        assert_eq!(machine.turns.starving(), Some(machine.now + STARVED));
        machine.now += TICK * 4;
        assert_eq!(machine.turn(Pace::Prompt), None);
        machine.ready(id, "another");
        machine.now += TICK;
        machine.ready(other, "other");
        assert_eq!(machine.turn(Pace::Prompt), Some("guest"));
        // That was its turn: the next one is as far away as the first was.
        assert_eq!([(); 2].map(|()| machine.turn(Pace::Prompt)), [Some("other"), None]);
        machine.now += STARVED;
        let held = machine.turns.next(Pace::Patient, machine.now);
        assert!(held.is_some() && machine.turns.starving().is_none());
    }

    #[test]
    fn what_a_patient_thread_holds_does_not_hold_up_the_others() {
        let mut machine = Machine::of(2);
        let id = machine.component();
        machine.exhaust(id);
        machine.ready(id, "held");
        assert_eq!(machine.next(Pace::Patient), Some("held"));
        machine.ready(id, "guest");
        machine.ready(id, "another");
        machine.now += STARVED;
        assert_eq!([Pace::Prompt, Pace::Patient].map(|pace| machine.next(pace)), [None; 2]);
        machine.now += CROWDED;
        assert_eq!([Pace::Patient, Pace::Prompt].map(|pace| machine.next(pace)), [None, Some("guest")]);
        // Of one component only so many compute, wherever: that one is not stuck.
        machine.now += CROWDED;
        assert_eq!((machine.next(Pace::Prompt), machine.turns.starving()), (None, None));
        machine.turns.done(id, Pace::Prompt, TICK, machine.now);
        assert_eq!(machine.turns.starving(), Some(machine.now + CROWDED));
    }

    #[test]
    fn on_a_crowded_machine_turns_are_prompt_and_rare() {
        let mut machine = Machine::of(2);
        let id = machine.component();
        machine.exhaust(id);
        machine.turns.waited(CROWDED);
        assert!(!machine.turns.wants_room(), "nobody waits");
        machine.ready(id, "guest");
        assert!(machine.turns.wants_room() && !machine.turns.has(Pace::Patient, machine.now));
        machine.now += STARVED;
        assert_eq!(machine.turn(Pace::Prompt), Some("guest"));
        machine.ready(id, "guest");
        machine.turns.waited(STARVED);
        assert!(!machine.turns.wants_room());
        assert_eq!(machine.turn(Pace::Patient), Some("guest"));
        // One that computes little has nothing of it.
        let light = machine.component();
        machine.turns.waited(CROWDED);
        machine.ready(light, "light");
        assert!(!machine.turns.wants_room());
        assert_eq!(machine.turn(Pace::Prompt), Some("light"));
    }

    #[test]
    fn a_heavy_component_presses_those_that_are_at_work() {
        let mut machine = Machine::of(2);
        let (id, other, own) = (machine.component(), machine.component(), machine.turns.join(true, machine.now));
        let presses = |machine: &Machine| [id, other, own].map(|id| machine.turns.presses(id, machine.now));
        assert_eq!(presses(&machine), [false; 3]);
        machine.exhaust(id);
        assert_eq!(presses(&machine), [true, false, false]);
        for _ in 0..600 {
            machine.ready(id, "guest");
            machine.turn(Pace::Patient);
        }
        assert_eq!(presses(&machine), [false; 3], "the other one has nothing to do");
        machine.ready(own, "own");
        machine.turn(Pace::Prompt);
        assert_eq!(presses(&machine), [false; 3], "no component");
        machine.ready(other, "other");
        assert_eq!(presses(&machine), [true, false, false], "it waits for a turn");
        machine.turn(Pace::Prompt);
        assert_eq!(presses(&machine), [true, false, false]);
    }

    #[test]
    fn one_that_is_trusted_is_prompt_whatever_it_computes() {
        let mut machine = Machine::of(2);
        let own = machine.turns.join(true, machine.now);
        for _ in 0..100 {
            machine.ready(own, "own");
            assert_eq!(machine.turn(Pace::Prompt), Some("own"));
        }
        for _ in 0..5 {
            machine.ready(own, "own");
            assert_eq!(machine.next(Pace::Prompt), Some("own"));
        }
    }
}
