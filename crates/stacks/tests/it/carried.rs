//! Tests what an import carries over besides the job: trackers, hub data sets, tool environments. And what it never
//! repeats: keys and passwords.

use plimsoll_base::Result;
use plimsoll_stacks::{Imported, Wishes, find, import, settings};

fn imported(stack: &str, name: &str, text: &str) -> Result<Imported> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("a file");
    import(find(stack).expect("a stack"), &path, &Wishes::default())
}

/// The lines of a section without their comments.
fn section<'r>(run: &'r str, name: &str) -> Vec<&'r str> {
    let section = run.split_once(&format!("\n[{name}]\n")).map_or("", |(_, rest)| rest);
    let lines = section.lines().take_while(|line| !line.is_empty());
    lines.map(|line| line.split("  #").next().unwrap_or_default()).collect()
}

const OPENRLHF: &str =
    "python3 -m openrlhf.cli.train_ppo_ray --pretrain a/b --max_samples 8 --prompt_data x.jsonl";
const VERL: &str =
    "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=a/b data.train_files=x.parquet";
const TRL: &str = "trl grpo --model_name_or_path a/b --max_steps 4 --dataset_name x.jsonl";

const WANDB: &str = "to = [\"wandb\"]";

/// A stack, lines before its command, further options; the lines of `[track]`, and how a remark begins.
type Case = (&'static str, &'static str, &'static str, &'static [&'static str], &'static str);

const TRACKED: [Case; 15] = [
    (
        "openrlhf",
        "",
        "--use_wandb {wandb_token} --wandb_project sums --wandb_run_name ./first/1 --wandb_group g",
        &[WANDB, "project = \"sums\"", "name = \"first-1\""],
        "left out: wandb_group = g: W&B's client takes it from WANDB_RUN_GROUP",
    ),
    ("openrlhf", "", "--logger.wandb.key True --logger.wandb.project p", &[WANDB, "project = \"p\""], ""),
    ("openrlhf", "", "--wandb_project p", &[], "left out: wandb_project = p: no tracker"),
    (
        "openrlhf",
        "",
        "--use_tensorboard logs",
        &["to = [\"tensorboard\"]"],
        "changed: use_tensorboard = logs: its files are in track/tensorboard",
    ),
    (
        "openrlhf",
        "",
        "--use_tensorboard logs --use_wandb 1",
        &[WANDB],
        "left out: use_tensorboard = logs: W&B is on",
    ),
    (
        "verl",
        "",
        "trainer.logger=['console','wandb','swanlab'] trainer.project_name=sums trainer.experiment_name=one",
        &[WANDB, "project = \"sums\"", "name = \"one\""],
        "changed: trainer.logger = [console,wandb,swanlab]: [track] has no swanlab",
    ),
    ("verl", "", "trainer.logger=console", &[], ""),
    // W&B is verl's default: nothing is sent that the file does not name.
    ("verl", "", "trainer.project_name=sums", &[], "left out: trainer.project_name = sums: no tracker"),
    ("verl", "", "trainer.logger=clearml", &[], "left out: trainer.logger = clearml: [track] has no clearml"),
    (
        "trl",
        "export WANDB_PROJECT=sums\nexport WANDB_MODE=offline\n",
        "--report_to wandb tensorboard --run_name r",
        &["to = [\"wandb\", \"tensorboard\"]", "project = \"sums\"", "name = \"r\"", "mode = \"offline\""],
        "",
    ),
    (
        "trl",
        "MLFLOW_TRACKING_URI=http://host:5000\nMLFLOW_EXPERIMENT_NAME=e\n",
        "--report_to mlflow",
        &["to = [\"mlflow\"]", "project = \"e\"", "uri = \"http://host:5000\""],
        "",
    ),
    ("trl", "", "--report_to none", &[], ""),
    ("trl", "", "--report_to all", &[], "left out: report_to = all: which trackers those are"),
    (
        "trl",
        "export WANDB_DISABLED=true\n",
        "--report_to wandb",
        &[],
        "changed: report_to = wandb: the file switches W&B off",
    ),
    (
        "trl",
        "",
        "--report_to trackio --project p --trackio_space_id o/s",
        &["to = [\"trackio\"]", "project = \"p\""],
        "left out: trackio_space_id = o/s: Trackio's client takes it from TRACKIO_SPACE_ID",
    ),
];

#[test]
fn trackers_become_a_section() {
    for (stack, before, more, expect, remark) in TRACKED {
        let command = match stack {
            "openrlhf" => OPENRLHF,
            "verl" => VERL,
            _ => TRL,
        };
        let script = format!("{before}{command} {more}");
        let run = imported(stack, "x.sh", &script).expect(&script);
        assert_eq!(section(&run.run_file, "track"), expect, "{script}: {}", run.run_file);
        let is_remarked = remark.is_empty() || run.remarks.iter().any(|line| line.starts_with(remark));
        assert!(is_remarked, "{script}: {:?}", run.remarks);
    }
    let python = "import os, wandb\nos.environ[\"WANDB_PROJECT\"] = \"one\"  # ours\nwandb.init(name=\"r\", config=x)\n\
                  GRPOTrainer(model=\"a/b\", args=GRPOConfig(max_steps=4, report_to=[\"wandb\"]))\n";
    let run = imported("trl", "x.py", python).expect("a run file").run_file;
    assert_eq!(section(&run, "track"), [WANDB, "project = \"one\"", "name = \"r\""], "{run}");
}

/// A key of W&B that was given to `--use_wandb` was once repeated in the list of what was left out.
#[test]
fn r_a_key_was_repeated_in_the_run_file() {
    const KEY: &str = "1234567890abcdef1234567890abcdef12345678";
    for (stack, name, text) in [
        ("openrlhf", "x.sh", format!("{OPENRLHF} --use_wandb {KEY}")),
        ("openrlhf", "x.sh", format!("wandb_token={KEY}\n{OPENRLHF} --logger.wandb.key=$wandb_token")),
        ("openrlhf", "x.sh", format!("{OPENRLHF} --use_wandb {KEY} more --seed 1")),
        ("openrlhf", "x.sh", format!("{OPENRLHF} --wandb_key {KEY} --hub_token {KEY}")),
        ("openrlhf", "x.sh", format!("{OPENRLHF}\npython3 -m openrlhf.cli.train_sft --use_wandb {KEY}")),
        ("verl", "x.sh", format!("export WANDB_API_KEY={KEY}\n{VERL} trainer.logger=wandb")),
        ("verl", "x.sh", format!("{VERL} +ray_kwargs.ray_init.runtime_env.env_vars.WANDB_API_KEY={KEY}")),
        ("verl", "x.sh", format!("{VERL} +trainer.wandb_api_key={KEY} +trainer.password='{KEY}'")),
        ("trl", "x.sh", format!("{TRL} --hub_token {KEY} --report_to wandb")),
        ("trl", "x.yaml", format!("model_name_or_path: a/b\nnum_generations: 2\nhub_token: {KEY}\n")),
        (
            "trl",
            "x.py",
            format!(
                "import os\nos.environ[\"HF_TOKEN\"] = \"{KEY}\"\nlogin(token=\"{KEY}\")\n\
                 model = AutoModelForCausalLM.from_pretrained(make(), token=\"{KEY}\")\n\
                 data = other(load(\"a/b\", token='{KEY}'))\n\
                 GRPOTrainer(model, [own], GRPOConfig(max_steps=4, hub_token=\"{KEY}\"), data, hf_{KEY})\n"
            ),
        ),
    ] {
        let run = imported(stack, name, &text).expect(&text);
        assert!(!run.run_file.contains(KEY), "{text}: {}", run.run_file);
        assert!(!run.remarks.join("\n").contains(KEY), "{text}: {:?}", run.remarks);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(name);
        std::fs::write(&path, &text).expect("a file");
        let given = settings(find(stack).expect("a stack"), &path).expect("settings");
        assert!(!format!("{given:?}").contains(KEY), "{text}: {given:?}");
    }
    let run = imported("openrlhf", "x.sh", &format!("{OPENRLHF} --use_wandb {KEY}")).expect("a run file");
    let said = "changed: use_wandb = (not shown): a key is not carried over: W&B's client takes it from WANDB_API_KEY";
    assert!(run.remarks.iter().any(|line| line.starts_with(said)), "{:?}", run.remarks);
    let run = imported("trl", "x.sh", &format!("export HF_TOKEN={KEY}\n{TRL}")).expect("a run file");
    assert!(
        run.remarks.iter().any(|line| line.starts_with("left out: HF_TOKEN: it is a secret")),
        "{:?}",
        run.remarks
    );
}

/// Only some names were known, addresses kept their users, and the values of unknown options were listed.
#[test]
fn r_keys_of_options_with_other_names_were_repeated() {
    let trl = format!(
        "{TRL} --openai_key ZQ --auth ZQ --pat ZQ --bearer ZQ --mytoken ZQ --sas ZQ --pin 7ZQ7 --plain ZQ"
    );
    for (stack, name, text, said) in [
        ("trl", "x.sh", trl, "left out: openai_key = (not shown): "),
        ("trl", "x.sh", format!("{TRL} --vllm_server_host http://u:ZQ@h --grader sk-ZQ --x ghp_ZQ"), "left out: grader = (not shown)"),
        ("trl", "x.yaml", "model_name_or_path: a/b\nnum_generations: 2\nmax_steps: 4\nplaces:\n  W: ZQ\nnested: {password: ZQ, list: [token, ZQ]}\nmore:\n- [ZQ]\n- - ZQ\n- {x: ZQ}\n? [ZQ]\n: ZQ\n".into(), "left out: nested = (not shown)"),
        ("openrlhf", "x.sh", format!("{OPENRLHF} --remote_rm_url 'http://u:ZQ@host:1/x?api_key=ZQ'"), "left out: remote_rm_url = http://host:1/x: its value held a key"),
        ("openrlhf", "x.sh", format!("{OPENRLHF} --remote_rm_headers 'Authorization: Bearer ZQ'"), "left out: remote_rm_headers = (not shown)"),
        ("openrlhf", "x.sh", format!("{OPENRLHF} --input_key q WANDB_API_KEY=ZQ --auth_header 'Bearer ZQ'"), "left out: auth_header = (not shown)"),
        ("verl", "x.sh", format!("{VERL} reward_model.sandbox_fusion.url=https://u:ZQ@h/run trainer.wandb_proxy=http://u:ZQ@p:1"), "left out: trainer.wandb_proxy = (not shown)"),
        ("verl", "x.sh", format!("{VERL} ++custom.token=ZQ +ray_init.runtime_env.env_vars.FOO=ZQ custom='{{a: ZQ}}'"), "left out: custom.token = (not shown)"),
    ] {
        let run = imported(stack, name, &text).expect(&text);
        assert!(!run.run_file.contains("ZQ"), "{text}: {}", run.run_file);
        let remarks = run.remarks.join("\n");
        assert!(!remarks.contains("ZQ") && remarks.contains(said), "{text}: {remarks}");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(name);
        std::fs::write(&path, &text).expect("a file");
        let given = settings(find(stack).expect("a stack"), &path).expect("settings");
        assert!(!format!("{given:?}").contains("ZQ"), "{text}: {given:?}");
    }
}

#[test]
fn data_sets_of_the_hub_keep_their_names() {
    let openrlhf = "python3 -m openrlhf.cli.train_ppo_ray --pretrain a/b --max_samples 8";
    let trl = "trl grpo --model_name_or_path a/b --max_steps 4";
    let verl = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=a/b";
    for (stack, script, expect) in [
        (
            "openrlhf",
            format!("{openrlhf} --prompt_data o/n --input_key q --label_key a"),
            "prompts = \"hf:o/n\"",
        ),
        (
            "openrlhf",
            format!("{openrlhf} --prompt_data o/n --prompt_split valid"),
            "prompts = \"hf:o/n/valid\"",
        ),
        (
            "openrlhf",
            format!("{openrlhf} --prompt_data o/n@0.3,o/m@sub@0.7"),
            "prompts = [{ path = \"hf:o/n\", name = \"n\", weight = 0.3 }",
        ),
        (
            "openrlhf",
            format!("{openrlhf} --prompt_data data/x.jsonl --eval_dataset o/n"),
            "eval = \"hf:o/n\"",
        ),
        ("verl", format!("{verl} data.train_files=o/n"), "prompts = \"hf:o/n\""),
        (
            "verl",
            format!("{verl} data.train_files=hf://datasets/o/n/x/a.parquet"),
            "prompts = \"hf:o/n/x/a.parquet\"",
        ),
        ("verl", format!("{verl} data.train_files=data/n.parquet"), "prompts = \"data/n.parquet\""),
        ("trl", format!("{trl} --dataset_name o/n --dataset_config main"), "prompts = \"hf:o/n/main/train\""),
        (
            "trl",
            format!("{trl} --dataset_name o/n --dataset_config main --eval_strategy steps --eval_steps 2"),
            "eval = \"hf:o/n/main/test\"",
        ),
        (
            "trl",
            format!("{trl} --dataset_name o/n --dataset_train_split train[:9]"),
            "prompts = \"hf:o/n/train\"",
        ),
        ("trl", format!("{trl} --dataset_name o/n --dataset_train_split a+b"), "prompts = \"hf:o/n\""),
    ] {
        let run = imported(stack, "x.sh", &script).expect(&script).run_file;
        let has = section(&run, "data").iter().any(|line| line.starts_with(expect));
        assert!(has, "{script}: {run}");
    }
    let remarks = imported("trl", "x.sh", &format!("{trl} --dataset_name x.jsonl --dataset_config main"))
        .expect("x")
        .remarks;
    assert!(
        remarks.iter().any(|line| line.starts_with("left out: dataset_config = main: data is a file here")),
        "{remarks:?}"
    );
}

#[test]
fn load_dataset_becomes_a_name() {
    for (data, expect, remark) in [
        ("load_dataset(\"openai/gsm8k\", \"main\", split=\"train\")", "hf:openai/gsm8k/main/train", ""),
        ("load_dataset(\"openai/gsm8k\", name=\"main\")[\"test\"]", "hf:openai/gsm8k/main/test", ""),
        ("load_dataset(\"o/n\", revision=\"v1\", split=\"a\")", "hf:o/n@v1/a", ""),
        ("load_dataset(\"o/n\", data_files=\"x/y.parquet\")", "hf:o/n/x/y.parquet", ""),
        ("load_dataset(\"json\", data_files=\"y.jsonl\", split=\"train\")", "y.jsonl", ""),
        (
            "load_dataset(\"o/n\", split=\"train\").map(f)",
            "hf:o/n/train",
            "left out: train_dataset.map: code",
        ),
        ("load_dataset(\"o/n\", split=\"train\").shuffle(seed=1)", "hf:o/n/train", ""),
        // A function of the file.
        ("questions()", "hf:o/m/main/train", "left out: train_dataset.questions: code"),
    ] {
        let own =
            "def questions(split=\"train\"):\n    return load_dataset(\"o/m\", \"main\")[split].map(f)\n";
        let own = if data == "questions()" { own } else { "" };
        let script = format!(
            "{own}data = {data}\nGRPOTrainer(model=\"a/b\", args=GRPOConfig(max_steps=4), train_dataset=data)\n"
        );
        let run = imported("trl", "x.py", &script).expect(data);
        let line = format!("prompts = \"{expect}\"");
        assert!(section(&run.run_file, "data").contains(&line.as_str()), "{data}: {}", run.run_file);
        let code: Vec<&String> = run.remarks.iter().filter(|line| line.contains("train_dataset.")).collect();
        assert_eq!(code.is_empty(), remark.is_empty(), "{data}: {code:?}");
        assert!(code.iter().all(|line| line.starts_with(remark)), "{data}: {code:?}");
    }
}

#[test]
fn a_class_of_tools_becomes_an_environment() {
    let script = |before: &str, factory: &str, data: &str| {
        format!(
            "{before}\nGRPOTrainer(model=\"a/b\", reward_funcs=[score], environment_factory={factory}, train_dataset=load_dataset({data}),\n\
             args=GRPOConfig(max_steps=4, max_completion_length=512, max_tool_calling_iterations=3))\n"
        )
    };
    let own = "class Sums:\n    def reset(self, **row):\n        return None\ndef score(environments, **kwargs):\n    return [0.0]";
    let run = imported("trl", "x.py", &script(own, "Sums", "\"json\", data_files=\"rows.jsonl\""))
        .expect("a run file");
    let lines = section(&run.run_file, "environment");
    assert!(lines[0].starts_with("env = \"python:") && lines[0].ends_with("/x.py:Sums\""), "{lines:?}");
    let expect = ["turns_max = 4", "episode_tokens_max = 512", "rows = \"rows.jsonl\""];
    assert!(expect.iter().all(|line| lines.contains(line)), "{lines:?}");
    for gone in ["[[reward]]", "chat_template", "prompts ="] {
        assert!(!run.run_file.contains(gone), "{gone}: {}", run.run_file);
    }
    let said = |start: &str| run.remarks.iter().any(|line| line.starts_with(start));
    assert!(
        said("left out: reward_funcs = ") && said("missing: data.prompt_tokens_max"),
        "{:?}",
        run.remarks
    );

    let run = imported("trl", "x.py", &script("from envs.sums import Sums", "Sums", "\"o/n\""))
        .expect("a run file");
    assert!(
        section(&run.run_file, "environment").contains(&"env = \"python:envs/sums.py:Sums\""),
        "{}",
        run.run_file
    );
    assert!(section(&run.run_file, "environment").contains(&"rows = \"hf:o/n\""), "{}", run.run_file);
    let run =
        imported("trl", "x.py", &script(own, "Sums", "\"json\", data_files=[\"a.jsonl\", \"b.jsonl\"]"))
            .expect("a run file");
    assert!(!run.run_file.contains("rows = "), "{}", run.run_file);
    let rows = "left out: train_dataset = ";
    let several =
        |line: &String| line.starts_with(rows) && line.contains("rows for it are environment.rows, one");
    assert!(run.remarks.iter().any(several), "{:?}", run.remarks);

    for factory in ["lambda: Sums()", "make()", "Unknown"] {
        let error = imported("trl", "x.py", &script(own, factory, "\"o/n\"")).expect_err(factory);
        assert_eq!(error.slug, "import-not-built", "{factory}");
    }
}

/// A script whose trainer has these tools, and what is next to it.
fn with_tools(before: &str, tools: &str, more: &str) -> Result<Imported> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.py");
    std::fs::write(folder.path().join("search.py"), "def find(): ...\n").expect("a file");
    let script = format!(
        "{before}\nGRPOTrainer(model=\"a/b\", tools={tools}, {more}\n\
         train_dataset=load_dataset(\"json\", data_files=\"rows.jsonl\"), eval_dataset=load_dataset(\"json\", data_files=\"held.jsonl\"),\n\
         args=GRPOConfig(max_steps=4, max_completion_length=512, max_tool_calling_iterations=3))\n"
    );
    std::fs::write(&path, script).expect("a file");
    import(find("trl").expect("a stack"), &path, &Wishes::default())
}

const OWN_TOOLS: &str = "from search import find as look\nimport search\nimport math\nfrom math import sqrt\n\
    def add(x: int) -> int:\n    return x\nasync def later(x: int) -> int:\n    return x\n\
    def score(completions, **kwargs):\n    return [0.0]\nclass Sums:\n    def reset(self): ...\n\
    by_name = [add, look]\nshort = lambda x: x";

#[test]
fn functions_of_no_class_become_tools_that_the_rewards_grade() {
    for (tools, expect) in [
        ("[add]", &["/x.py:add\""][..]),
        ("[add, later, look]", &["/x.py:add\"", "/x.py:later\"", "/search.py:find\""]),
        ("by_name", &["/x.py:add\"", "/search.py:find\""]),
        ("[search.find]", &["/search.py:find\""]),
    ] {
        let run = with_tools(OWN_TOOLS, tools, "reward_funcs=[score], reward_weights=[2.0],").expect(tools);
        let lines = section(&run.run_file, "environment");
        let fixed = ["env = \"tools\"", "turns_max = 4", "episode_tokens_max = 512", "rows = \"rows.jsonl\""];
        assert!(fixed.iter().all(|line| lines.contains(line)), "{tools}: {lines:?}");
        assert!(lines.contains(&"eval_rows = \"held.jsonl\""), "{tools}: {lines:?}");
        let line = lines.iter().find(|line| line.starts_with("tools = [")).expect(tools);
        assert_eq!(line.matches("\"python:").count(), expect.len(), "{line}");
        assert!(expect.iter().all(|place| line.contains(place)), "{line}");
        let rewards = ["[[reward]]", "/x.py:score\"", "weight = 2.0"];
        assert!(rewards.iter().all(|words| run.run_file.contains(words)), "{}", run.run_file);
        for gone in ["chat_template", "prompts ="] {
            assert!(!run.run_file.contains(gone), "{gone}: {}", run.run_file);
        }
    }
    for none in ["[]", "None"] {
        let run = with_tools(OWN_TOOLS, none, "reward_funcs=[score],").expect(none);
        assert!(section(&run.run_file, "environment").is_empty(), "{none}: {}", run.run_file);
    }
    // Next to the methods of a class, which gives the reward.
    let run = with_tools(OWN_TOOLS, "[add]", "environment_factory=Sums,").expect("a class with functions");
    let lines = section(&run.run_file, "environment");
    assert!(lines.iter().any(|line| line.ends_with("/x.py:Sums\"")), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("tools = [\"python:")), "{lines:?}");
}

#[test]
fn rows_of_tools_keep_their_names() {
    let script = |data: &str| {
        format!(
            "def add(x: int): ...\nGRPOTrainer(model=\"a/b\", tools=[add], {data}, args=GRPOConfig(max_steps=4))\n"
        )
    };
    for (data, expect) in [
        ("load_dataset(\"o/n\")", "hf:o/n"),
        ("load_dataset(\"o/n\", split=\"train\")", "hf:o/n/train"),
        ("load_dataset(\"o/n\", \"main\", split=\"train[:9]\")", "hf:o/n/main/train"),
        ("load_dataset(\"o/n\", \"main\", split=\"train\", revision=\"e5\")", "hf:o/n@e5/main/train"),
        ("load_dataset(\"parquet\", data_files=\"a.parquet\")", "a.parquet"),
        ("load_dataset(\"o/n\", split=\"train\").map(f).rename_column(\"q\", \"prompt\")", "hf:o/n/train"),
    ] {
        let given =
            format!("train_dataset={data}, eval_dataset=load_dataset(\"o/n\", \"main\", split=\"test\")");
        let run = imported("trl", "x.py", &script(&given)).expect(data);
        let lines = section(&run.run_file, "environment");
        assert!(lines.contains(&format!("rows = \"{expect}\"").as_str()), "{data}: {lines:?}");
        assert!(lines.contains(&"eval_rows = \"hf:o/n/main/test\""), "{data}: {lines:?}");
        assert!(
            !run.remarks.iter().any(|line| line.starts_with("missing: environment")),
            "{:?}",
            run.remarks
        );
        let code = run.remarks.iter().filter(|line| line.starts_with("left out: train_dataset.")).count();
        assert_eq!(code, if data.contains(".map") { 2 } else { 0 }, "{data}: {:?}", run.remarks);
    }
    // Several sets, and what code makes, are no rows.
    for data in ["load_dataset(\"json\", data_files=[\"a.jsonl\", \"b.jsonl\"])", "make()"] {
        let run = imported("trl", "x.py", &script(&format!("train_dataset={data}"))).expect(data);
        let said = |start: &str| run.remarks.iter().any(|line| line.starts_with(start));
        assert!(
            said("missing: environment.rows: ") && said("left out: train_dataset = "),
            "{data}: {:?}",
            run.remarks
        );
    }
}

#[test]
fn a_tool_that_is_no_function_of_a_file_is_refused_by_its_name() {
    for (tools, named) in [
        ("[add, lambda x: x]", "tools = [add, lambda x: x]"),
        ("[short]", "tools = short"),
        ("[add, print]", "tools = print"),
        ("[math.sqrt]", "tools = math.sqrt"),
        ("[sqrt]", "tools = sqrt"),
        ("[Sums]", "tools = Sums"),
        ("[Sums().reset]", "tools = [Sums().reset]"),
        ("make_tools()", "tools = make_tools()"),
        ("[partial(add, 1)]", "tools = [partial(add, 1)]"),
    ] {
        let error = with_tools(OWN_TOOLS, tools, "reward_funcs=[score],").expect_err(tools);
        assert_eq!(error.slug, "import-not-built", "{tools}");
        let line = format!("{named}: an episode is one response here");
        assert!(error.to_string().contains(&line), "{tools}: {error}");
    }
}

#[test]
fn uploads_are_a_command_of_their_own() {
    let script =
        format!("{TRL} --output_dir out/one --push_to_hub --hub_model_id o/mine --hub_private_repo true");
    let remarks = imported("trl", "x.sh", &script).expect("a run file").remarks;
    for expect in [
        "left out: push_to_hub: a run here uploads nothing: `plimsoll checkpoint push RUN hf:org/name` does, afterwards",
        "left out: hub_model_id = o/mine: afterwards: plimsoll checkpoint push out/one hf:o/mine",
        "left out: hub_private_repo = true: `plimsoll checkpoint push` makes a private repository",
    ] {
        assert!(remarks.iter().any(|line| line.starts_with(expect)), "{expect}: {remarks:?}");
    }
}
