//! An engine that computes little and exactly: logits are a row of a table, one for each token before, and the table is
//! what is trained. Its losses, gradients and samples are real; what it saves is on the disk.

use plimsoll_base::{Error, Result};
use plimsoll_tinker::{
    AdamStep, Job, JobAnswer, Lane, Ranked, SampleAnswer, SampleEnd, SampleJob, SampledTokens, StopRule,
    StoreFolders, Tinker, TrainDatum, pass_loss,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

pub const VOCAB: usize = 128;
pub const CONTEXT: usize = 2048;
const SIZE: usize = VOCAB * VOCAB;
/// The one file of a store.
const FILE: &str = "adapter_model.safetensors";
const IDLE: Duration = Duration::from_millis(20);

/// Says where the engine with this folder has its stores.
pub fn folders(folder: &std::path::Path) -> StoreFolders {
    let folder = folder.to_path_buf();
    StoreFolders(Arc::new(move |store| folder.join(format!("store-{store}"))))
}

#[derive(Clone)]
struct Table {
    weights: Vec<f32>,
    gradients: Vec<f64>,
    /// First and second moments, and steps.
    moments: [Vec<f32>; 2],
    steps: i32,
}

impl Table {
    fn new(seed: u64) -> Table {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1;
        let mut weight = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u32 << 24) as f32 - 0.5
        };
        Table {
            weights: (0..SIZE).map(|_| weight()).collect(),
            gradients: vec![0.0; SIZE],
            moments: [vec![0.0; SIZE], vec![0.0; SIZE]],
            steps: 0,
        }
    }

    /// Log-probs of all tokens after `token`.
    fn logprobs(&self, token: u32) -> Vec<f64> {
        let at = token as usize * VOCAB;
        let row: Vec<f64> = self.weights[at..at + VOCAB].iter().map(|x| f64::from(*x)).collect();
        let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|x| (x - most).exp()).sum();
        row.iter().map(|x| x - most - sum.ln()).collect()
    }

    fn pass(
        &mut self,
        datums: &[TrainDatum],
        loss: &plimsoll_algo::sum_loss::SumLoss,
        gradients: bool,
    ) -> JobAnswer {
        let logprobs: Vec<Vec<f32>> = datums.iter().map(|datum| self.of_targets(datum)).collect();
        let computed = pass_loss(loss, datums, &logprobs);
        if gradients {
            for (datum, d_logp) in datums.iter().zip(&computed.d_logp) {
                self.add(datum, d_logp);
            }
        }
        JobAnswer::Pass { logprobs, metrics: computed.metrics }
    }

    fn of_targets(&self, datum: &TrainDatum) -> Vec<f32> {
        let rows = datum.tokens.iter().zip(datum.targets.chunks(datum.width));
        rows.flat_map(|(token, targets)| {
            let all = self.logprobs(*token);
            targets.iter().map(|target| all[*target as usize] as f32).collect::<Vec<_>>()
        })
        .collect()
    }

    fn add(&mut self, datum: &TrainDatum, d_logp: &[f32]) {
        for (i, token) in datum.tokens.iter().enumerate() {
            let all = self.logprobs(*token);
            for j in 0..datum.width {
                let d = f64::from(d_logp[i * datum.width + j]);
                let target = datum.targets[i * datum.width + j] as usize;
                for (v, logp) in all.iter().enumerate() {
                    let is_target = f64::from(u8::from(v == target));
                    self.gradients[*token as usize * VOCAB + v] += d * (is_target - logp.exp());
                }
            }
        }
    }

    fn step(&mut self, adam: &AdamStep) -> f64 {
        self.steps += 1;
        let norm = self.gradients.iter().map(|g| g * g).sum::<f64>().sqrt();
        let clip = if adam.grad_clip_norm > 0.0 && norm > adam.grad_clip_norm {
            adam.grad_clip_norm / norm
        } else {
            1.0
        };
        let [first, second] = &mut self.moments;
        for (i, weight) in self.weights.iter_mut().enumerate() {
            let g = self.gradients[i] * clip;
            first[i] = (adam.beta1 * f64::from(first[i]) + (1.0 - adam.beta1) * g) as f32;
            second[i] = (adam.beta2 * f64::from(second[i]) + (1.0 - adam.beta2) * g * g) as f32;
            let m = f64::from(first[i]) / (1.0 - adam.beta1.powi(self.steps));
            let v = f64::from(second[i]) / (1.0 - adam.beta2.powi(self.steps));
            let decayed = f64::from(*weight) * (1.0 - adam.learning_rate * adam.weight_decay);
            *weight = (decayed - adam.learning_rate * m / (v.sqrt() + adam.eps)) as f32;
        }
        self.gradients.fill(0.0);
        norm
    }

    fn to_bytes(&self) -> Vec<u8> {
        let floats = self.weights.iter().chain(&self.moments[0]).chain(&self.moments[1]);
        floats.flat_map(|x| x.to_le_bytes()).chain(self.steps.to_le_bytes()).collect()
    }

    fn of_bytes(bytes: &[u8]) -> Table {
        let words = bytes.as_chunks::<4>().0;
        let floats = |part: usize| {
            words[part * SIZE..(part + 1) * SIZE].iter().map(|w| f32::from_le_bytes(*w)).collect()
        };
        let steps = i32::from_le_bytes(words[3 * SIZE]);
        Table { weights: floats(0), gradients: vec![0.0; SIZE], moments: [floats(1), floats(2)], steps }
    }
}

/// The engine's models, and where it saves them.
pub struct Fake {
    folder: PathBuf,
    models: BTreeMap<String, Table>,
    /// Jobs that were done.
    pub jobs: Arc<AtomicU64>,
    /// Fails a step with this learning rate.
    pub refuses_rate: f64,
}

impl Fake {
    pub fn new(folder: PathBuf) -> Fake {
        Fake { folder, models: BTreeMap::new(), jobs: Arc::default(), refuses_rate: 13.0 }
    }

    /// Does jobs until the service closes.
    pub fn serve(mut self, tinker: Arc<Tinker>) -> JoinHandle<()> {
        std::thread::spawn(move || {
            let mut lane = Lane::Training;
            while let Some(work) = next(&tinker, &mut lane) {
                let answer = self.work(&work.job);
                self.jobs.fetch_add(1, Ordering::Relaxed);
                work.answer(answer);
            }
        })
    }

    fn model(&mut self, name: &str) -> Result<&mut Table> {
        self.models.get_mut(name).ok_or_else(|| Error::new("internal", format!("no model {name}")))
    }

    fn path(&self, store: u64) -> PathBuf {
        self.folder.join(format!("store-{store}")).join(FILE)
    }

    fn read(&self, store: u64) -> Result<Table> {
        let path = self.path(store);
        std::fs::read(&path)
            .map(|bytes| Table::of_bytes(&bytes))
            .map_err(|err| Error::io("io-error", &path, &err))
    }

    fn work(&mut self, job: &Job) -> Result<JobAnswer> {
        match job {
            Job::Create { model, adapter } => {
                self.models.insert(model.clone(), Table::new(adapter.seed));
            }
            Job::Pass { model, datums, loss, gradients } => {
                return Ok(self.model(model)?.pass(datums, loss, *gradients));
            }
            Job::Step { model, adam } if adam.learning_rate == self.refuses_rate => {
                return Err(Error::new("tinker-bad-request", format!("{model}: the step is refused")));
            }
            Job::Step { model, adam } => {
                let norm = self.model(model)?.step(adam);
                return Ok(JobAnswer::Step { metrics: vec![("grad_norm:mean".into(), norm)] });
            }
            Job::Save { model, store, .. } => {
                let bytes = self.model(model)?.to_bytes();
                let path = self.path(*store);
                let failed = |err| Error::io("io-error", &path, &err);
                std::fs::create_dir_all(path.parent().expect("it is in a folder")).map_err(failed)?;
                let mut file = File::create(&path).map_err(failed)?;
                file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(failed)?;
                return Ok(JobAnswer::Saved { bytes: bytes.len() as u64 });
            }
            Job::Load { model, store, optimizer, .. } => {
                let mut table = self.read(*store)?;
                if !optimizer {
                    table.moments = [vec![0.0; SIZE], vec![0.0; SIZE]];
                    table.steps = 0;
                }
                self.models.insert(model.clone(), table);
            }
            Job::Sample(sample) => {
                let table = match sample.store {
                    Some(store) => self.read(store)?,
                    None => Table::new(0),
                };
                return Ok(JobAnswer::Sampled(draw(&table, sample)));
            }
            Job::DropModel { model } => drop(self.models.remove(model)),
            Job::DropStore { store } => {
                let _ = std::fs::remove_dir_all(self.path(*store).parent().expect("it is in a folder"));
            }
        }
        Ok(JobAnswer::Done)
    }
}

/// Takes from both lanes in turn.
fn next(tinker: &Arc<Tinker>, lane: &mut Lane) -> Option<plimsoll_tinker::TakenJob> {
    loop {
        *lane = if *lane == Lane::Training { Lane::Sampling } else { Lane::Training };
        let other_waits = tinker.waiting(Lane::Training) + tinker.waiting(Lane::Sampling) > 0;
        if let Some(work) = tinker.take(*lane, if other_waits { Duration::ZERO } else { IDLE }) {
            return Some(work);
        }
        if tinker.is_closed() {
            return None;
        }
    }
}

fn draw(table: &Table, job: &SampleJob) -> SampleAnswer {
    let mut answer = SampleAnswer::default();
    let before = job.prompt.windows(2);
    if job.prompt_logprobs {
        let each = before.clone().map(|pair| table.logprobs(pair[0])[pair[1] as usize] as f32);
        answer.prompt_logprobs = Some(std::iter::once(f32::NAN).chain(each).collect());
    }
    if job.topk_prompt > 0 {
        let mut top = Ranked {
            k: job.topk_prompt,
            tokens: vec![0; job.topk_prompt as usize],
            logprobs: vec![-99999.0; job.topk_prompt as usize],
        };
        before.clone().for_each(|pair| push_top(&table.logprobs(pair[0]), &mut top));
        answer.ranked_prompt = Some(top);
    }
    if let Some((columns, targets)) = &job.target_prompt {
        let rows = before.zip(targets.chunks(*columns as usize));
        let logprobs = rows.flat_map(|(pair, ids)| {
            let all = table.logprobs(pair[0]);
            ids.iter().map(|id| id.map_or(f32::NAN, |id| all[id as usize] as f32)).collect::<Vec<_>>()
        });
        answer.target_prompt = Some((*columns, logprobs.collect()));
    }
    answer.sequences = (0..job.num_samples).map(|i| sequence(table, job, u64::from(i))).collect();
    answer
}

fn sequence(table: &Table, job: &SampleJob, i: u64) -> SampledTokens {
    let most = job.params.max_tokens.map_or(CONTEXT - job.prompt.len(), |most| most as usize);
    let mut state = job.params.seed.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1;
    let mut last = *job.prompt.last().expect("a prompt has tokens");
    let mut out =
        SampledTokens { end: SampleEnd::Length, tokens: Vec::new(), logprobs: Vec::new(), ranked: None };
    let mut top = Ranked { k: job.topk_sample, ..Ranked::default() };
    while out.tokens.len() < most {
        let all = table.logprobs(last);
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut left = (state >> 11) as f64 / (1u64 << 53) as f64;
        let drawn = all.iter().position(|logp| {
            left -= logp.exp();
            left <= 0.0
        });
        last = drawn.unwrap_or(VOCAB - 1) as u32;
        out.tokens.push(last);
        out.logprobs.push(all[last as usize] as f32);
        if top.k > 0 {
            push_top(&all, &mut top);
        }
        let stops = match &job.params.stop {
            StopRule::EndOfText => last == VOCAB as u32 - 1,
            StopRule::Tokens(ids) => ids.contains(&last),
            StopRule::Texts(_) => false,
        };
        if stops {
            out.end = SampleEnd::Stop;
            break;
        }
    }
    out.ranked = (top.k > 0).then_some(top);
    out
}

fn push_top(all: &[f64], top: &mut Ranked) {
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by(|a, b| all[*b].total_cmp(&all[*a]));
    for token in order.into_iter().take(top.k as usize) {
        top.tokens.push(token as u32);
        top.logprobs.push(all[token] as f32);
    }
}
