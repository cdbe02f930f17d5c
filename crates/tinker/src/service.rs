//! The service between the routes and the engine: accepts requests, gives them to the engine in their order and writes
//! down what it answers.
//!
//! A request is answered with its number once the journal has it; a result is shown once the journal has it. The lock
//! of the state is held for neither.

use crate::codec::output::Reply;
use crate::folders::StoreFolders;
use crate::guard::TokenTenants;
use crate::job::{Job, JobAnswer, StoreId};
use crate::journal::Journal;
use crate::limits::TinkerLimits;
use crate::names;
use crate::queue::{JobQueue, Lane};
use crate::record::{Record, RecoveryPoint, RequestEnding, RequestKey, RequestTask, SavedRow};
use crate::replies::{ending_of, step_reply, widths_of};
use crate::state::{Core, Released, Shut, now, stamped};
use plimsoll_base::{Error, Result};
use plimsoll_serve::guard::Guard;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A base model that can be trained and sampled from.
#[derive(Clone, Debug)]
pub struct ServedModel {
    pub name: String,
    /// Tokens of prompt and response together.
    pub context: usize,
    /// Token ids are below it.
    pub vocab: u32,
    /// What a client's tokenizer is loaded from: a folder, or a name of the hub.
    pub tokenizer: Option<String>,
    pub rank_max: u32,
}

/// What a server of the protocol is started with.
#[derive(Clone, Debug)]
pub struct TinkerSettings {
    pub models: Vec<ServedModel>,
    pub tenants: TokenTenants,
    pub limits: TinkerLimits,
    /// The journal's file, in a folder that is there.
    pub journal: PathBuf,
    /// Where saved weights are, for clients that download them; `None` refuses that.
    pub folders: Option<StoreFolders>,
}

/// The protocol's state, shared by the routes and the engine.
pub struct Tinker {
    pub(crate) settings: TinkerSettings,
    core: Mutex<Core>,
    queue: JobQueue<Purpose>,
    pub(crate) journal: Journal,
    journal_bytes: AtomicU64,
    compacts: AtomicBool,
    /// Bytes of the journal at which it is written anew.
    compact_at: AtomicU64,
    /// Sessions that end once a number of states is saved, and why.
    ending: Mutex<BTreeMap<String, (usize, String)>>,
}

/// What is done with the answer to a job.
#[derive(Clone, Debug)]
enum Purpose {
    Request(u64),
    /// An answered request, done again after a restart.
    Again {
        number: u64,
        model: String,
        widths: Vec<usize>,
    },
    /// A model made again from what was saved.
    Restore(String),
    /// A save after which the journal can be cut.
    Recover {
        model: String,
        store: StoreId,
    },
    /// A save at the end of a session.
    Last {
        session: String,
        model: String,
        path: String,
        store: StoreId,
    },
    Forget,
}

/// A job that was given to the engine. What is dropped without an answer is done again after a restart.
pub struct TakenJob {
    pub job: Job,
    tenant: String,
    purpose: Purpose,
    service: Arc<Tinker>,
}

impl TakenJob {
    /// Returns true if its client has given it up: the engine may answer anything.
    pub fn is_cancelled(&self) -> bool {
        matches!(self.purpose, Purpose::Request(number) if self.service.lock().is_cancelled(number))
    }

    /// Returns a hash of whose job it is: those of one tenant alone share what they have computed.
    pub fn salt(&self) -> [u8; 32] {
        Guard { token: Some(self.tenant.clone()), hosts: Vec::new() }.salt()
    }

    /// Answers the job. An error must have left the model as it was.
    pub fn answer(self, answer: Result<JobAnswer>) {
        self.service.answer(&self.job, self.purpose, answer);
    }
}

impl Tinker {
    /// Reads the journal and has everything done again that a restart needs.
    ///
    /// Errors: `tinker-journal-damaged`, `tinker-journal-failed`, `thread-not-started`.
    pub fn start(settings: TinkerSettings) -> Result<Arc<Tinker>> {
        let mut core = Core::new(settings.limits);
        let (journal, bytes) = Journal::open(&settings.journal, |bytes| {
            core.apply(Record::of_bytes(bytes)?, bytes.len());
            Ok(())
        })?;
        core.has_loaded();
        let tinker = Arc::new(Tinker {
            compact_at: AtomicU64::new(settings.limits.compact_bytes),
            settings,
            core: Mutex::new(core),
            queue: JobQueue::default(),
            journal,
            journal_bytes: AtomicU64::new(bytes),
            compacts: AtomicBool::new(false),
            ending: Mutex::default(),
        });
        tinker.restore();
        tinker.start_clock()?;
        Ok(tinker)
    }

    /// Takes the next job of a lane, for which it waits up to `wait`. Jobs of one model come one after another.
    pub fn take(self: &Arc<Tinker>, lane: Lane, wait: Duration) -> Option<TakenJob> {
        let until = Instant::now() + wait;
        loop {
            let (job, purpose, tenant) =
                self.queue.take(lane, until.saturating_duration_since(Instant::now()))?;
            let refused = {
                let core = self.lock();
                let failing = job.model().and_then(|model| core.failing(model));
                let failing = failing.map(|reason| Error::new("tinker-replay-differs", reason));
                let is_cancelled = matches!(purpose, Purpose::Request(number) if core.is_cancelled(number));
                failing
                    .or(is_cancelled.then(|| Error::new("tinker-future-gone", "the request was cancelled")))
            };
            match refused {
                None => return Some(TakenJob { job, tenant, purpose, service: self.clone() }),
                Some(error) => self.answer(&job, purpose, Err(error)),
            }
        }
    }

    /// Returns all that is saved and known: an engine may remove anything else when it starts.
    pub fn stores(&self) -> Vec<StoreId> {
        self.lock().tables.stores.clone()
    }

    /// Waits up to `longest` for a job of either lane, or for the end.
    pub fn wait(&self, longest: Duration) {
        self.queue.wait(longest);
    }

    /// Returns the jobs that wait in a lane.
    pub fn waiting(&self, lane: Lane) -> usize {
        self.queue.waiting(lane)
    }

    /// Ends the engine's waiting and takes no more requests. What was accepted is done after the next start.
    pub fn close(&self) {
        self.queue.close();
    }

    /// Returns true once no more requests are taken.
    pub fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().expect("no holder panics")
    }

    /// Finds a base model by its name.
    ///
    /// Errors: `tinker-not-found`.
    pub(crate) fn base_model(&self, name: &str) -> Result<&ServedModel> {
        let names = self.settings.models.iter().map(|model| model.name.as_str());
        self.settings.models.iter().find(|model| model.name == name).ok_or_else(|| {
            let error = crate::state::not_found("base model", name);
            error.hint(format!("this server has {}", names.collect::<Vec<_>>().join(", ")))
        })
    }

    /// Writes a record down; `done` hears on the journal's thread whether it is on the disk.
    pub(crate) fn commit(
        &self,
        core: &mut Core,
        record: Record,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        let bytes = record.to_bytes();
        self.commit_bytes(core, record, bytes, done);
    }

    fn commit_bytes(
        &self,
        core: &mut Core,
        record: Record,
        bytes: Vec<u8>,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        self.journal_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        core.apply(record, bytes.len());
        // With the lock, so that the order in the journal is that of the changes.
        self.journal.append(bytes, done);
    }

    /// Commits a record and returns what hears of it.
    pub(crate) fn commit_heard(&self, core: &mut Core, record: Record) -> oneshot::Receiver<Result<()>> {
        let (send, heard) = oneshot::channel();
        // A client that has gone does not hear.
        self.commit(core, record, move |done| drop(send.send(done)));
        heard
    }

    /// Accepts a request in its place; without one it comes after all others of its target. The same place again is the
    /// same request. Returns its number and what hears that it is on the disk.
    ///
    /// Errors: those of `Core::admit`; `serve-stopping`.
    pub(crate) fn submit(
        self: &Arc<Tinker>,
        tenant: &str,
        (target, seq): (&str, Option<i64>),
        task: RequestTask,
    ) -> Result<(u64, oneshot::Receiver<Result<()>>)> {
        if self.is_closed() {
            return Err(Error::new("serve-stopping", "the server takes no more requests"));
        }
        let mut core = self.lock();
        let key = |core: &mut Core| RequestKey {
            target: target.to_string(),
            seq: seq.unwrap_or_else(|| core.last_seq(target)),
        };
        let given = key(&mut core);
        if let Some(same) = core.same_request(tenant, &given) {
            return Ok((same, self.barrier()));
        }
        let number = core.next_number();
        drop(core);
        // Large requests become bytes without the lock.
        let mut record =
            Record::Accepted { number, tenant: tenant.to_string(), time: now(), key: given, task };
        let mut bytes = record.to_bytes();
        let mut core = self.lock();
        let Record::Accepted { key: place, task, .. } = &mut record else { unreachable!("it was made here") };
        if seq.is_none() && core.last_seq(target) != place.seq {
            place.seq = core.last_seq(target);
        }
        if let Some(same) = core.same_request(tenant, place) {
            return Ok((same, self.barrier()));
        }
        core.admit(tenant, place, task, bytes.len())?;
        if seq.is_none() {
            bytes = record.to_bytes();
        }
        let (send, heard) = oneshot::channel();
        let (service, target) = (Arc::downgrade(self), target.to_string());
        self.commit_bytes(&mut core, record, bytes, move |done| {
            if let Some(service) = service.upgrade() {
                service.has_accepted(number, &target, done.is_ok());
            }
            drop(send.send(done));
        });
        Ok((number, heard))
    }

    /// Returns what hears that all before it is on the disk.
    fn barrier(&self) -> oneshot::Receiver<Result<()>> {
        let (send, heard) = oneshot::channel();
        self.journal.append(Vec::new(), move |done| drop(send.send(done)));
        heard
    }

    fn has_accepted(&self, number: u64, target: &str, is_kept: bool) {
        let mut core = self.lock();
        if !is_kept {
            return core.undo_accept(number);
        }
        core.accepted(number);
        self.dispatch(&mut core, target);
        self.dispatch_sample(&mut core, number);
    }

    fn dispatch_sample(&self, core: &mut Core, number: u64) {
        if let Some((tenant, job)) = core.release_sample(number) {
            self.queue.push(&tenant, job, Purpose::Request(number));
        }
    }

    /// Gives a model's requests whose turn has come to the queue.
    pub(crate) fn dispatch(&self, core: &mut Core, model: &str) {
        for released in core.release(model) {
            match released {
                Released::Give { number, tenant, job } => {
                    self.queue.push(&tenant, job, Purpose::Request(number))
                }
                Released::Fail { number, ending } => self.end(core, number, ending, 0),
                Released::Recover { tenant } => {
                    let store = core.next_number();
                    let job =
                        Job::Save { model: model.to_string(), store, kind: crate::job::SaveKind::Training };
                    self.queue.push(&tenant, job, Purpose::Recover { model: model.to_string(), store });
                }
            }
        }
    }

    /// Lets a model's order pass over a place whose request was refused.
    pub(crate) fn void(&self, tenant: &str, model: &str, seq: i64) {
        let mut core = self.lock();
        let key = RequestKey { target: model.to_string(), seq };
        let is_open = core.model(tenant, model).is_ok() && core.same_request(tenant, &key).is_none();
        let last = core.last_seq(model);
        // Within reach of what has come, so that refusals cannot fill the table.
        if is_open && seq >= core.next_seq(model) && seq < last + self.settings.limits.pending as i64 {
            self.commit(&mut core, Record::Void { model: model.to_string(), seq }, |_| {});
            self.dispatch(&mut core, model);
        }
    }

    /// Writes a request's ending down, and shows it once it is there.
    fn end(&self, core: &mut Core, number: u64, ending: RequestEnding, saved_bytes: u64) {
        let record = stamped(ending, number, saved_bytes);
        let bytes = record.to_bytes();
        let changed = core.shower(number);
        self.commit_bytes(core, record, bytes, move |_| changed());
    }

    fn answer(self: &Arc<Tinker>, job: &Job, purpose: Purpose, answer: Result<JobAnswer>) {
        match purpose {
            Purpose::Request(number) => self.finish(number, answer),
            Purpose::Again { number, model, widths } => self.compare((number, &widths), &model, answer),
            Purpose::Restore(model) => {
                if let Err(error) = answer {
                    self.break_model(
                        &model,
                        &format!("it could not be made again from what was saved: {error}"),
                    );
                }
            }
            Purpose::Recover { model, store } => {
                let mut core = self.lock();
                core.has_recovered(&model);
                let row =
                    core.tables.models.get(&model).filter(|row| !row.has_gradients && row.closed.is_none());
                match (row, &answer) {
                    (Some(row), Ok(_)) => {
                        let point = RecoveryPoint { store, seq: row.answered };
                        self.commit(&mut core, Record::Recovered { model, point }, |_| {});
                    }
                    // Nothing refers to it, so the next sweep drops it.
                    _ => core.tables.stores.push(store),
                }
            }
            Purpose::Last { session, model, path, store } => {
                self.has_last(&session, (model, path, store), answer)
            }
            Purpose::Forget => {}
        }
        if let Some(model) = job.model() {
            self.queue.done(model);
        }
    }

    fn finish(&self, number: u64, answer: Result<JobAnswer>) {
        let Some((key, brief)) = self.lock().waiting(number) else { return };
        let saved_bytes = match &answer {
            Ok(JobAnswer::Saved { bytes }) => *bytes,
            _ => 0,
        };
        let ending = ending_of(key.as_ref(), &brief, answer);
        self.end(&mut self.lock(), number, ending, saved_bytes);
    }

    /// Compares what was computed again with what was answered before, which must be the same bytes.
    fn compare(&self, (number, widths): (u64, &[usize]), model: &str, answer: Result<JobAnswer>) {
        let mut core = self.lock();
        let known = core.known(number);
        let again = match answer {
            Ok(JobAnswer::Pass { logprobs, metrics }) => Reply::pass(&logprobs, widths, &metrics),
            Ok(answer @ JobAnswer::Step { .. }) => step_reply(&answer),
            Ok(_) => return,
            Err(error) => {
                let reason = format!("a request failed when it was done again after a restart: {error}");
                return core.shut_model(model, Shut { reason, fails: true });
            }
        };
        if let Some((seq, RequestEnding::Done(before))) = known
            && before != again
        {
            let reason = format!("request {seq} had another result when it was done again after a restart");
            core.shut_model(model, Shut { reason, fails: true });
        }
    }

    fn break_model(&self, model: &str, reason: &str) {
        self.lock().shut_model(model, Shut { reason: reason.to_string(), fails: true });
    }

    /// Has done again what a restart needs: each model from its recovery point, then the requests after it.
    fn restore(&self) {
        let mut core = self.lock();
        for model in core.open_models() {
            let row = core.tables.models[&model].clone();
            if let Some(point) = row.recovery {
                let job = Job::Load {
                    model: model.clone(),
                    adapter: row.adapter,
                    store: point.store,
                    optimizer: true,
                };
                self.queue.push(&row.tenant, job, Purpose::Restore(model.clone()));
            }
            for number in row.log {
                match core.job_again(&model, number) {
                    Some(job) => {
                        let widths = widths_of(&job);
                        self.queue.push(
                            &row.tenant,
                            job,
                            Purpose::Again { number, model: model.clone(), widths },
                        );
                    }
                    None => {
                        let reason = format!("the journal has no request {number}, which a restart needs");
                        core.shut_model(&model, Shut { reason, fails: true });
                    }
                }
            }
            self.dispatch(&mut core, &model);
        }
        for number in core.open_samples() {
            self.dispatch_sample(&mut core, number);
        }
        let error =
            Error::new("tinker-session-closed", "the model was closed before the server started again");
        for number in core.stranded() {
            self.end(&mut core, number, RequestEnding::of(&error), 0);
        }
    }

    /// Ends a session. `keeps`: saves the states of its models first, under a name that clients can load.
    pub(crate) fn end_session(&self, core: &mut Core, session: &str, reason: &str, keeps: bool) {
        if self.ending().contains_key(session) {
            return;
        }
        let mut waits = 0;
        for model in core.models_of(session) {
            let row = core.tables.models[&model].clone();
            let path = last_path(core, &model);
            let keeps = keeps && row.answered >= 0;
            let reason =
                if keeps { format!("{reason}; its last state is {path}") } else { reason.to_string() };
            let error =
                Error::new("tinker-session-closed", format!("the model {model:?} is closed: {reason}"));
            for number in core.held_of(&model) {
                self.end(core, number, RequestEnding::of(&error), 0);
            }
            core.shut_model(&model, Shut { reason, fails: false });
            if keeps {
                let store = core.next_number();
                let job = Job::Save { model: model.clone(), store, kind: crate::job::SaveKind::Training };
                let (session, model) = (session.to_string(), model.clone());
                self.queue.push(&row.tenant, job, Purpose::Last { session, model, path, store });
                waits += 1;
            }
            self.queue.push(&row.tenant, Job::DropModel { model }, Purpose::Forget);
        }
        core.forget_session_sign(session);
        if waits > 0 {
            self.ending().insert(session.to_string(), (waits, reason.to_string()));
        } else {
            let record = Record::SessionEnded { id: session.to_string(), reason: reason.to_string() };
            self.commit(core, record, |_| {});
        }
    }

    fn has_last(
        &self,
        session: &str,
        (model, path, store): (String, String, StoreId),
        answer: Result<JobAnswer>,
    ) {
        let mut core = self.lock();
        if let (Ok(JobAnswer::Saved { bytes }), Some(row)) = (answer, core.tables.models.get(&model).cloned())
        {
            let saved = SavedRow {
                tenant: row.tenant,
                model,
                kind: crate::job::SaveKind::Training,
                store,
                adapter: row.adapter,
                time: now(),
                bytes,
                expires: None,
                metadata: BTreeMap::new(),
            };
            self.commit(&mut core, Record::Saved { path, row: saved }, |_| {});
        }
        let mut ending = self.ending();
        let Some((waits, _)) = ending.get_mut(session) else { return };
        *waits -= 1;
        if *waits == 0 {
            let (_, reason) = ending.remove(session).expect("it is there");
            self.commit(&mut core, Record::SessionEnded { id: session.to_string(), reason }, |_| {});
        }
    }

    fn ending(&self) -> MutexGuard<'_, BTreeMap<String, (usize, String)>> {
        self.ending.lock().expect("no holder panics")
    }

    /// Does what time brings: closes silent sessions, fails requests whose predecessor does not come, forgets what is
    /// old, drops what nothing needs, and writes the journal anew when it has grown.
    pub fn tick(self: &Arc<Tinker>) {
        let mut core = self.lock();
        core.forget_old(now());
        for session in core.silent_sessions() {
            let reason = format!("no sign of life for {} s", self.settings.limits.silence.as_secs());
            self.end_session(&mut core, &session, &reason, true);
        }
        for (model, missing, numbers) in core.gaps() {
            let message = format!(
                "request {missing} of the model {model:?}, which comes before this one, did not come"
            );
            let ending = RequestEnding::of(&Error::new("tinker-order", message));
            numbers.into_iter().for_each(|number| self.end(&mut core, number, ending.clone(), 0));
        }
        for path in core.expired(now()) {
            self.commit(&mut core, Record::Deleted { path }, |_| {});
        }
        for store in core.take_garbage() {
            self.queue.push("", Job::DropStore { store }, Purpose::Forget);
        }
        let is_large = self.journal_bytes.load(Ordering::Relaxed) > self.compact_at.load(Ordering::Relaxed);
        if is_large && !self.compacts.swap(true, Ordering::Relaxed) {
            self.compact(&core);
        }
    }

    fn compact(self: &Arc<Tinker>, core: &Core) {
        let (image, service) = (core.image(), Arc::downgrade(self));
        self.journal.rewrite(image.first, image.keep, Record::accepted_number, move |bytes| {
            let Some(service) = service.upgrade() else { return };
            service.journal_bytes.store(bytes, Ordering::Relaxed);
            // What is needed may itself be large; twice that is the next time.
            let least = service.settings.limits.compact_bytes;
            service.compact_at.store((bytes * 2).max(least), Ordering::Relaxed);
            service.compacts.store(false, Ordering::Relaxed);
        });
    }

    fn start_clock(self: &Arc<Tinker>) -> Result<()> {
        let service = Arc::downgrade(self);
        let clock = move || {
            while let Some(service) = service.upgrade().filter(|service| !service.is_closed()) {
                service.tick();
                drop(service);
                std::thread::sleep(Duration::from_secs(1));
            }
        };
        let started = std::thread::Builder::new().name("tinker-clock".into()).spawn(clock);
        started
            .map(drop)
            .map_err(|err| Error::new("thread-not-started", format!("the clock's thread: {err}")))
    }
}

/// Returns the name under which a session's end saves a model.
fn last_path(core: &Core, model: &str) -> String {
    let path = |name: &str| names::path_of(model, crate::job::SaveKind::Training, name);
    let usual = path("session-end");
    if core.tables.saved.contains_key(&usual) {
        path(&format!("session-end-{}", core.tables.next_number))
    } else {
        usual
    }
}
