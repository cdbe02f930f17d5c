//! A run without its directory: its plan, its device, and the trainer over both.

use plimsoll_base::{Bytes, Result};
use plimsoll_config::{RunSpec, load_text};
use plimsoll_device::Device;
use plimsoll_files::OpenModel;
use plimsoll_infer::bound::Sources;
use plimsoll_infer::text::{Item, TextModel};
use plimsoll_plan::{
    Facts, HostFacts, Hosts, PerRole, PlanReport, RoleName, devices, disk_facts, parse_limits, plan_with,
    rows_kept,
};
use plimsoll_reward::Rewards;
use plimsoll_rl::context::{Cursor, StepContext};
use plimsoll_rl::methods::parts::StepParts;
use plimsoll_rl::methods::policy::step;
use plimsoll_rl::methods::report::StepReport;
use plimsoll_rl::players::Answers;
use plimsoll_rl::roles::Trainer;
use plimsoll_rl::supply::{self, Supply};
use plimsoll_rl::teachers;
use plimsoll_text::Tokenizer;
use plimsoll_train::Share;
use std::path::Path;

const RUN: &str = r#"model = "builtin:nano"
[data]
prompts = "rows of the test"
eval = "none"
prompt_tokens_max = 8
[rollout]
prompts_per_step = 4
group_size = 4
max_new_tokens = 5
[[reward]]
kind = "exact"
[train]
steps = 4
learning_rate = 1e-3
[run]
device = "cpu"
threads = 2
"#;

/// Pairs are not sampled and not rewarded.
const PAIRS: &str = r#"model = "builtin:nano"
[data]
prompts = "rows of the test"
eval = "none"
[rollout]
prompts_per_step = 4
[train]
steps = 4
learning_rate = 1e-4
[run]
device = "cpu"
threads = 2
"#;

/// A run and everything that its steps read.
pub struct Case {
    pub run: RunSpec,
    pub model: OpenModel,
    pub text: TextModel,
    pub report: PlanReport,
}

pub fn case(method: &str, sets: &[&str]) -> Case {
    let rest = if matches!(method, "dpo" | "reward_model") { PAIRS } else { RUN };
    let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
    let text = format!("method = \"{method}\"\n{rest}");
    let loaded = load_text(text, Path::new("run.toml"), &sets, std::iter::empty());
    let run = RunSpec::new(&loaded.unwrap_or_else(|error| panic!("{sets:?}: {error}")).run);
    let model = OpenModel::open("builtin:nano", None, false).expect("it is built in");
    let text = TextModel {
        tokenizer: Tokenizer::from_files(&model.tokenizer, model.spec.vocab).expect("its own").into(),
        template: None,
        system_prompt: None,
        strings: Default::default(),
        eos: model.eos_token_ids.first().copied(),
        ends: Vec::new(),
        rules: Default::default(),
        teacher_prompt: None,
        teacher_text: None,
        album: None,
        form: None,
    };
    let limits = parse_limits("host=64GiB,disk=1TiB").expect("limits");
    let report = plan_with(&run, &facts(&run, &model), &limits).expect("sizes of machines");
    assert!(report.fits, "{:?}", report.hints);
    Case { run, model, text, report }
}

fn facts(run: &RunSpec, model: &OpenModel) -> Facts {
    let spec = model.spec;
    Facts {
        spec,
        prompt_tokens: 8,
        completion_tokens: if run.objective().is_some() { 0 } else { 8 },
        eval_prompts: 0,
        share: Share::WHOLE,
        hosts: Hosts::one(1),
        trainers: Hosts::one(1),
        card: None,
        sight: None,
        tenants: None,
        models: PerRole::none()
            .with(RoleName::Critic, run.critic().is_some().then_some(spec))
            .with(RoleName::TEACHER, run.distill().is_some().then_some(spec)),
        adapters: PerRole::none(),
        encodings: PerRole::none(),
        host: HostFacts {
            image: Bytes::mib(40),
            tokenizer: Bytes::mib(1),
            data: Bytes::mib(1),
            staging: Bytes::mib(4),
            clients: Bytes(0),
            schema: Bytes(0),
            script: Bytes(0),
            rows_kept: rows_kept(run),
            disk: disk_facts(run),
        },
    }
}

/// A trainer and what goes on from step to step.
pub struct World<'c, 'a> {
    pub case: &'c Case,
    pub trainer: Trainer<'a>,
    pub parts: StepParts,
    pub supply: Box<dyn Supply>,
    pub cursor: Cursor,
}

impl Case {
    pub fn world<T>(&self, body: impl FnOnce(&mut World<'_, '_>) -> T) -> T {
        let shape = &self.report.shape;
        let opening = devices::opening(shape, devices::options(&self.run));
        let (dev, mut arena) = plimsoll_devices::open(&self.report.plan.layout, &opening).expect("memory");
        let others = PerRole::none()
            .with(RoleName::Critic, self.run.critic().is_some().then_some(&self.model))
            .with(RoleName::TEACHER, self.run.distill().is_some().then_some(&self.model));
        let sources = Sources { others, ..Sources::one(&self.model) };
        let trainer = Trainer::new(&*dev, &mut arena, shape, sources, self.run.seed).expect("its weights");
        let vocab = self.model.spec.vocab as usize;
        let teacher = teachers::open(&self.run, 0, &self.text, vocab).expect("a model");
        let parts = StepParts::bind(&self.run, &shape.step_arrays(), teacher);
        let supply = supply::of(&self.run, shape, None);
        body(&mut World { case: self, trainer, parts, supply, cursor: Cursor::default() })
    }

    /// Sum `number` of the data, with its answer.
    pub fn item(&self, number: u64) -> Item {
        let (a, b) = (100 + number * 137 % 400, 100 + number * 61 % 400);
        let text = format!("{a}+{b}=");
        let columns = serde_json::json!({ "ground_truth": (a + b).to_string() });
        Item {
            ids: self.text.tokenizer.encode(&text).expect("the characters of the task"),
            text,
            columns: columns.as_object().expect("an object").clone().into(),
            ..Item::default()
        }
    }

    /// A pair whose chosen answer is the sum, and whose rejected one is another number.
    pub fn pair(&self, number: u64) -> Item {
        let item = self.item(number);
        let answer: u64 =
            item.columns["ground_truth"].as_str().and_then(|text| text.parse().ok()).expect("a sum");
        let encode = |number: u64| {
            let mut ids = self.text.tokenizer.encode(&number.to_string()).expect("digits");
            ids.extend(self.text.eos);
            ids
        };
        Item { completion: encode(answer), rejected: encode(answer + 11), ..item }
    }
}

impl World<'_, '_> {
    pub fn step(&mut self, number: u32) -> Result<StepReport> {
        let Case { run, model, text, .. } = self.case;
        let mut rewards = Rewards::new(&run.rewards).expect("they are built in");
        let case = self.case;
        let mut cx = StepContext {
            run,
            text,
            eos: &model.eos_token_ids,
            objective: run.objective().expect("a method that samples"),
            rewards: &mut rewards,
            prompts: &mut |first, count| Ok((first..first + count as u64).map(|n| case.item(n)).collect()),
            player: &mut Answers,
            estimator: None,
            parts: &mut self.parts,
            cursor: self.cursor,
            edge: &mut |_| {},
            waits: &mut |_| {},
        };
        let report = step(&mut self.trainer, &mut *self.supply, &mut cx, number);
        self.cursor = cx.cursor;
        report
    }

    pub fn weights(&mut self, role: RoleName) -> Vec<u32> {
        self.trainer.with_gathered(role, |dev: &dyn Device, _, all| {
            let mut weights = vec![0.0; all.len()];
            dev.read_f32(all, 0, &mut weights);
            weights.iter().map(|weight| weight.to_bits()).collect()
        })
    }
}

/// The weights of the policy after `steps` steps.
pub fn trained(case: &Case, steps: u32) -> Vec<u32> {
    case.world(|world| {
        for number in 1..=steps {
            world.step(number).expect("finite losses");
        }
        world.weights(RoleName::Actor)
    })
}
