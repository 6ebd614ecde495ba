//! What this process may use of the memory, which parts of it go to what, and how plugins share one of them.
//!
//! | part | for | unless told |
//! | --- | --- | --- |
//! | [`CACHES`] | the objects that plugins watch | `--cache-mib` |
//! | [`GUESTS`] | the linear memories of all guests | `--guest-mib` |
//! | [`COMPILER`] | the process that compiles one component at a time | |
//! | the rest | the host itself, answers on their way in, what the pool of instances keeps warm | |
//!
//! The parts are less than the whole together, so that plugins, however many, leave enough for the host itself. Of a small container they are no less than what ordinary plugins need, which
//! may be more than there is: give a host 2 GiB.

use std::{collections::BTreeMap, fs};

/// A part of the memory, in eighths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Eighths(usize);

/// For the objects that plugins watch.
pub const CACHES: Eighths = Eighths(2);
/// For the linear memories of all guests.
pub const GUESTS: Eighths = Eighths(3);
/// For compiling, which takes it for seconds only; but it is whoever brings a component who says when.
pub const COMPILER: Eighths = Eighths(2);

impl Eighths {
    /// So much of this.
    pub fn of(self, memory: usize) -> usize {
        (memory / 8).saturating_mul(self.0)
    }
}

/// The bytes of memory that this process may use: what its control group and those around it allow, or what the machine has if that is less. None where neither can be read. Each file that
/// says something about it is read by `read`.
pub fn usable(read: impl Fn(&str) -> Option<String>) -> Option<usize> {
    // Without a list of groups there may still be the one at the root.
    let groups = read("/proc/self/cgroup").unwrap_or_else(|| "0::/".to_owned());
    let groups = groups.lines().flat_map(limit_files).filter_map(|file| read(&file)?.trim().parse().ok()).min();
    let machine = read("/proc/meminfo").and_then(|text| total_of(&text));
    groups.into_iter().chain(machine).min()
}

/// So much of the memory of this process, or as much as is needed at `least`, where that is more or nothing is known.
pub fn share(part: Eighths, least: usize) -> usize {
    share_of(usable(|path| fs::read_to_string(path).ok()), part, least)
}

fn share_of(memory: Option<usize>, part: Eighths, least: usize) -> usize {
    memory.map_or(least, |memory| part.of(memory)).max(least)
}

/// The files that limit the group of a line of `/proc/self/cgroup` (`0::/system.slice/operetta.service`) and the groups around it, each of which counts. In a container most of them are not
/// there, and the one at the root is the container's own.
fn limit_files(line: &str) -> Vec<String> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { return Vec::new() };
    let (root, file) = match controllers {
        "" => ("/sys/fs/cgroup", "memory.max"),
        some if some.split(',').any(|controller| controller == "memory") => {
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        _ => return Vec::new(),
    };
    let paths = std::iter::successors(Some(path.trim_end_matches('/')), |path| Some(path.rsplit_once('/')?.0));
    paths.map(|path| format!("{root}{path}/{file}")).collect()
}

/// `MemTotal:       24576000 kB`, in bytes.
fn total_of(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1 << 10)
}

/// Bytes that many share.
///
/// The rule is the one by which switches share one buffer among many queues: **whoever wants more may hold as much as is still free**. A lone one so has half at most, two that want all there
/// is a third each, and who comes later always finds room; nobody has to say how much each may have.
#[derive(Debug)]
pub struct Shares<K> {
    total: usize,
    taken: usize,
    of: BTreeMap<K, usize>,
}

impl<K: Ord + Clone> Shares<K> {
    /// Of so many bytes.
    pub fn new(total: usize) -> Self {
        Self { total, taken: 0, of: BTreeMap::new() }
    }

    /// What is nobody's.
    pub fn free(&self) -> usize {
        self.total.saturating_sub(self.taken)
    }

    /// What each holds who holds anything.
    pub fn held(&self) -> &BTreeMap<K, usize> {
        &self.of
    }

    /// What this one holds.
    pub fn held_by(&self, who: &K) -> usize {
        self.of.get(who).copied().unwrap_or_default()
    }

    /// Whether this one may hold so many bytes more.
    pub fn has_room(&self, who: &K, bytes: usize) -> bool {
        self.free().checked_sub(bytes).is_some_and(|free| self.held_by(who).saturating_add(bytes) <= free)
    }

    /// Gives this one so many bytes more if it may hold them, and says whether it did.
    pub fn take(&mut self, who: &K, bytes: usize) -> bool {
        if !self.has_room(who, bytes) {
            return false;
        }
        self.taken = self.taken.saturating_add(bytes);
        match self.of.get_mut(who) {
            Some(of) => *of = of.saturating_add(bytes),
            None => {
                self.of.insert(who.clone(), bytes);
            }
        }
        true
    }

    /// Takes them back.
    pub fn give_back(&mut self, who: &K, bytes: usize) {
        self.taken = self.taken.saturating_sub(bytes);
        if let Some(of) = self.of.get_mut(who) {
            *of = of.saturating_sub(bytes);
            if *of == 0 {
                self.of.remove(who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What may be used where these files are there.
    fn usable_with(files: &[(&str, &str)]) -> Option<usize> {
        let files: BTreeMap<_, _> = files.iter().copied().collect();
        usable(|path| files.get(path).map(|text| (*text).to_owned()))
    }

    #[test]
    fn the_parts_leave_something_for_the_host_itself() {
        let memory = 2 << 30;
        let parts: usize = [CACHES, GUESTS, COMPILER].map(|part| part.of(memory)).iter().sum();
        assert_eq!(memory - parts, 256 << 20);
        assert_eq!((CACHES.of(memory), GUESTS.of(memory)), (512 << 20, 768 << 20));
    }

    #[test]
    fn a_part_is_no_less_than_what_is_needed() {
        for (memory, part) in [(Some(2 << 30), 512 << 20), (Some(1 << 30), 384 << 20), (None, 384 << 20)] {
            assert_eq!(share_of(memory, COMPILER, 384 << 20), part, "{memory:?}");
        }
        let memory = usable(|path| fs::read_to_string(path).ok()).unwrap();
        assert_eq!((share(CACHES, 1), share(GUESTS, memory)), (CACHES.of(memory), memory));
    }

    #[test]
    fn the_machines_memory_is_read_in_bytes() {
        let machine = ("/proc/meminfo", "MemTotal:       24576000 kB\nMemFree: 1 kB\n");
        assert_eq!(usable_with(&[machine]), Some(24_576_000 << 10));
        assert_eq!(usable_with(&[("/proc/meminfo", "MemFree: 1 kB\n")]), None);
        assert_eq!(usable_with(&[]), None);
    }

    #[test]
    fn the_smallest_limit_of_a_group_and_those_around_it_counts() {
        let machine = ("/proc/meminfo", "MemTotal: 1000 kB\n");
        let own = ("/proc/self/cgroup", "0::/a.slice/b.service\n");
        let at = |path: &str, limit: &str| usable_with(&[machine, own, (path, limit)]);
        for path in ["/a.slice/b.service", "/a.slice", ""] {
            assert_eq!(at(&format!("/sys/fs/cgroup{path}/memory.max"), "5000\n"), Some(5_000), "{path}");
        }
        assert_eq!(at("/sys/fs/cgroup/a.slice/memory.max", "max\n"), Some(1_000 << 10), "no limit is none");
        assert_eq!(at("/sys/fs/cgroup/a.slice/memory.max", "2000000\n"), Some(1_000 << 10), "more than there is");
        assert_eq!(at("/sys/fs/cgroup/other/memory.max", "5000\n"), Some(1_000 << 10), "somebody else's");
        let inner = ("/sys/fs/cgroup/a.slice/b.service/memory.max", "9000\n");
        let outer = ("/sys/fs/cgroup/a.slice/memory.max", "7000\n");
        assert_eq!(usable_with(&[machine, own, inner, outer]), Some(7_000));
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root_whatever_its_path_says() {
        let max = ("/sys/fs/cgroup/memory.max", "5000\n");
        for own in ["0::/\n", "0::/../../b\n", "0::/kubepods.slice/pod1/c1\n"] {
            assert_eq!(usable_with(&[("/proc/self/cgroup", own), max]), Some(5_000), "{own}");
        }
        assert_eq!(usable_with(&[max]), Some(5_000));
        let old = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "6000\n");
        let own = ("/proc/self/cgroup", "12:cpu,cpuacct:/docker/c1\n9:memory:/docker/c1\n0::/docker/c1\n");
        assert_eq!(usable_with(&[own, old]), Some(6_000));
    }

    #[test]
    fn whoever_wants_more_may_hold_as_much_as_is_free() {
        let mut shares = Shares::new(600);
        assert!(!shares.take(&"hog", 301) && shares.take(&"hog", 300), "a lone one has half");
        assert!(!shares.take(&"hog", 1));
        assert!(shares.has_room(&"second", 150) && !shares.has_room(&"second", 151));
        assert!(shares.take(&"second", 150), "who comes later has half of the rest");
        assert_eq!((shares.free(), shares.held_by(&"second"), shares.held().len()), (150, 150, 2));
        assert!(!shares.take(&"other", 1_000), "more than there is");
        shares.give_back(&"hog", 300);
        assert_eq!((shares.free(), shares.held_by(&"hog")), (450, 0), "what is given back is free");
        assert!(shares.take(&"second", 150) && !shares.take(&"second", 1));
        shares.give_back(&"second", 300);
        assert!(shares.held().is_empty() && shares.free() == 600);
    }
}
