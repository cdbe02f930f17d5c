//! A fixed pool of threads: tasks are taken from a counter, and the caller works as thread 0.
//!
//! A waiting thread spins for some microseconds and then sleeps: cores are shared with the workers of environments
//! and rewards. `run` allocates nothing. It refuses nothing: a `run` inside a task runs its tasks in place.

use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::thread::{self, JoinHandle, Thread};
use crate::sync::{Mutex, MutexGuard, UnsafeCell, thread_local};
use std::any::Any;
use std::cell::Cell;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Longest time that a thread waits with its core busy: about two system wake-ups. Loom would run every turn of it.
const SPIN: Duration = Duration::from_micros(if cfg!(loom) { 0 } else { 15 });
/// Checks of the condition between two looks at the clock.
const LOOKS: usize = if cfg!(loom) { 0 } else { 32 };

/// A task: its index and the index of the thread that runs it.
type Task<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// A fixed number of threads, including the caller's.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// One job at a time.
    gate: Mutex<()>,
}

/// The state word: `epoch << 32 | open << 31 | threads inside the job`.
const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;

struct Shared {
    state: AtomicU64,
    next: AtomicUsize,
    job: UnsafeCell<Job>,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

#[derive(Clone)]
struct Job {
    task: Option<&'static Task<'static>>,
    num_tasks: usize,
    caller: Option<Thread>,
}

// SAFETY: `job` is written only by the caller that holds the gate while the state is closed and no thread is inside,
// and read only by threads inside; the state word orders the two.
unsafe impl Sync for Shared {}
// SAFETY: the parts are Send; the task reference is Sync and used only while its caller waits.
unsafe impl Send for Shared {}

thread_local! {
    /// The pool whose task this thread runs now, and the thread's index.
    static INSIDE_OF: Cell<(usize, usize)> = Cell::default();
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} threads)", self.threads())
    }
}

impl Pool {
    /// Starts `threads - 1` threads.
    pub fn new(threads: usize) -> Pool {
        assert!(threads > 0, "a pool has at least the caller's thread");
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            job: UnsafeCell::new(Job { task: None, num_tasks: 0, caller: None }),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let start = |index: usize| {
            let shared = Arc::clone(&shared);
            let named = thread::Builder::new().name(format!("plimsoll-{index}"));
            named.spawn(move || shared.work(index)).expect("the system starts a thread")
        };
        Pool { workers: (1..threads).map(start).collect(), shared, gate: Mutex::new(()) }
    }

    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(index, thread)` for every index below `num_tasks` and waits for all.
    ///
    /// A panic in a task continues in the caller, after running tasks have ended; tasks not begun are dropped.
    pub fn run(&self, num_tasks: usize, task: &Task<'_>) {
        let (pool, thread) = INSIDE_OF.with(Cell::get);
        let is_nested = pool == self.id();
        // Held for a single task too: thread 0 is one caller at a time, so what belongs to a thread has one user.
        let gate = (!is_nested).then(|| lock(&self.gate));
        if is_nested || self.workers.is_empty() || num_tasks <= 1 {
            let thread = if is_nested { thread } else { 0 };
            let outer = INSIDE_OF.with(|inside| inside.replace((self.id(), thread)));
            let result = catch_unwind(AssertUnwindSafe(|| (0..num_tasks).for_each(|i| task(i, thread))));
            INSIDE_OF.with(|inside| inside.set(outer));
            return result.unwrap_or_else(|payload| resume_unwind(payload));
        }
        self.shared.open(num_tasks, task);
        self.workers.iter().take(num_tasks - 1).for_each(|w| w.thread().unpark());
        self.shared.take_tasks(num_tasks, task, 0);
        self.shared.close();
        let panic = lock(&self.shared.panic).take();
        drop(gate);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    fn id(&self) -> usize {
        Arc::as_ptr(&self.shared) as usize
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of its tasks, so it always ends by itself.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Publishes a job. The caller holds the gate.
    fn open(&self, num_tasks: usize, task: &Task<'_>) {
        // SAFETY: the reference is used only by threads inside the job, and `close` waits until none is.
        let task: &'static Task<'static> =
            unsafe { std::mem::transmute::<&Task<'_>, &'static Task<'static>>(task) };
        let job = Job { task: Some(task), num_tasks, caller: Some(thread::current()) };
        // SAFETY: the state is closed and no thread is inside, so none reads `job`.
        self.job.with_mut(|place| unsafe { *place = job });
        self.next.store(0, Ordering::Relaxed);
        let epoch = (self.state.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        self.state.store(epoch << 32 | OPEN, Ordering::Release);
    }

    /// Admits no further thread and waits until all have left.
    fn close(&self) {
        self.state.fetch_and(!OPEN, Ordering::AcqRel);
        self.wait(|| self.state.load(Ordering::Acquire) & INSIDE == 0);
    }

    /// Spins for a while, then sleeps until `done`; the thread that makes it true unparks this one.
    fn wait(&self, done: impl Fn() -> bool) {
        let mut start = None;
        loop {
            for _ in 0..LOOKS {
                if done() {
                    return;
                }
                spin_loop();
            }
            if start.get_or_insert_with(Instant::now).elapsed() >= SPIN {
                break;
            }
        }
        while !done() {
            thread::park();
        }
    }

    /// Runs a worker until the pool stops.
    fn work(&self, index: usize) {
        let mut last_epoch = 0;
        loop {
            let has_news = || {
                let state = self.state.load(Ordering::Acquire);
                self.stop.load(Ordering::Acquire) || (state & OPEN != 0 && state >> 32 != last_epoch)
            };
            self.wait(has_news);
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            if let Some(epoch) = self.enter() {
                last_epoch = epoch;
                // SAFETY: inside an open job: its caller waits for us before it touches `job` again.
                let Job { task, num_tasks, caller } = self.job.with(|job| unsafe { (*job).clone() });
                let caller = caller.expect("an open job has a caller");
                self.take_tasks(num_tasks, task.expect("an open job has a task"), index);
                let before = self.state.fetch_sub(1, Ordering::AcqRel);
                if before & OPEN == 0 && before & INSIDE == 1 {
                    caller.unpark();
                }
            }
        }
    }

    /// Counts this thread in if the job is still open; returns its epoch.
    fn enter(&self) -> Option<u64> {
        let mut state = self.state.load(Ordering::Acquire);
        while state & OPEN != 0 {
            match self.state.compare_exchange_weak(state, state + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(state >> 32),
                Err(now) => state = now,
            }
        }
        None
    }

    fn take_tasks(&self, num_tasks: usize, task: &Task<'_>, thread: usize) {
        let outer = INSIDE_OF.with(|inside| inside.replace((std::ptr::from_ref(self) as usize, thread)));
        let result = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let index = self.next.fetch_add(1, Ordering::Relaxed);
                if index >= num_tasks {
                    return;
                }
                task(index, thread);
            }
        }));
        INSIDE_OF.with(|inside| inside.set(outer));
        if let Err(payload) = result {
            self.next.store(num_tasks, Ordering::Relaxed);
            lock(&self.panic).get_or_insert(payload);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No data is left half changed under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Under loom: every order in which threads may see each other's writes, with a bounded number of preemptions.
#[cfg(test)]
#[cfg(loom)]
mod models {
    use super::*;

    fn check(model: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(model);
    }

    /// Elements that tasks write without an atomic operation: loom refuses two accesses that nothing puts in an order.
    fn run_and_read(pool: &Pool, num_tasks: usize) {
        let elements: Vec<UnsafeCell<usize>> = (0..num_tasks).map(|_| UnsafeCell::new(0)).collect();
        let elements = Elements(elements);
        pool.run(num_tasks, &|i, thread| {
            assert!(thread < pool.threads());
            // SAFETY: each task has its own element.
            elements.of(i).with_mut(|element| unsafe { *element += 1 + i });
        });
        for i in 0..num_tasks {
            // SAFETY: no task runs.
            assert_eq!(elements.of(i).with(|element| unsafe { *element }), 1 + i, "task {i} runs once");
        }
    }

    struct Elements(Vec<UnsafeCell<usize>>);
    // SAFETY: loom watches each access.
    unsafe impl Sync for Elements {}
    impl Elements {
        fn of(&self, i: usize) -> &UnsafeCell<usize> {
            &self.0[i]
        }
    }

    #[test]
    fn what_tasks_write_is_complete_when_run_returns_and_a_pool_ends() {
        check(|| run_and_read(&Pool::new(2), 2));
    }

    #[test]
    fn a_thread_that_comes_late_to_a_job_takes_no_task_of_the_next() {
        check(|| {
            let pool = Pool::new(2);
            run_and_read(&pool, 2);
            run_and_read(&pool, 3);
        });
    }

    #[test]
    fn three_threads_share_two_tasks() {
        check(|| run_and_read(&Pool::new(3), 2));
    }

    #[test]
    fn callers_take_turns() {
        check(|| {
            let pool = Arc::new(Pool::new(2));
            let other = {
                let pool = Arc::clone(&pool);
                thread::spawn(move || run_and_read(&pool, 2))
            };
            run_and_read(&pool, 2);
            other.join().unwrap();
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_after_all_tasks_have_ended() {
        check(|| {
            let pool = Pool::new(2);
            let run = || pool.run(2, &|i, _| assert!(i != 1, "task {i}"));
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
            run_and_read(&pool, 2);
        });
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    fn counts(pool: &Pool, num_tasks: usize) -> Vec<u32> {
        let counts: Vec<AtomicU32> = (0..num_tasks).map(|_| AtomicU32::new(0)).collect();
        pool.run(num_tasks, &|i, thread| {
            assert!(thread < pool.threads());
            counts[i].fetch_add(1, Ordering::Relaxed);
        });
        counts.into_iter().map(AtomicU32::into_inner).collect()
    }

    #[test]
    fn every_task_runs_once_in_many_tiny_runs() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads);
            for round in 0..2000 {
                let n = round % 7;
                assert_eq!(counts(&pool, n), vec![1; n]);
            }
        }
    }

    #[test]
    fn sleeping_threads_wake() {
        let pool = Pool::new(3);
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(1));
            assert_eq!(counts(&pool, 50), vec![1; 50]);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        for threads in [1, 3] {
            let pool = Pool::new(threads);
            for bad in [0, 7, 63] {
                let run = || pool.run(64, &|i, _| assert!(i != bad, "task {i}"));
                let payload = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
                assert_eq!(payload.downcast_ref::<String>().unwrap(), &format!("task {bad}"));
                assert_eq!(counts(&pool, 64), vec![1; 64]);
            }
        }
    }

    #[test]
    fn a_run_inside_a_task_runs_in_place() {
        let pool = Pool::new(2);
        let total = AtomicUsize::new(0);
        pool.run(8, &|_, outer| {
            pool.run(5, &|_, inner| {
                assert_eq!(inner, outer);
                total.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(total.into_inner(), 40);
    }

    #[test]
    fn several_callers_take_turns() {
        let pool = Pool::new(2);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..200).for_each(|_| assert_eq!(counts(&pool, 9), vec![1; 9])));
            }
        });
    }
}
