//! Jobs that became another with exit code 0, or were refused for a wrong reason: trainers, classes within functions,
//! pictures, options of branches; and the order of the notes.

use plimsoll_base::{Error, Result};
use plimsoll_stacks::{Imported, Wishes, find, import, settings};

fn imported(stack: &str, name: &str, text: &str, all: bool) -> Result<Imported> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    std::fs::write(&path, text).expect("a file");
    import(find(stack).expect("a stack"), &path, &Wishes { all, ..Wishes::default() })
}

fn refused(stack: &str, name: &str, text: &str) -> Error {
    imported(stack, name, text, false).expect_err(text)
}

const VERL: &str =
    "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=a/b data.train_files=x.parquet";

#[test]
fn what_the_engine_decides_is_one_count_and_comes_last() {
    let script = "trl grpo --model_name_or_path a/b --dataset_name x.jsonl --frobnicate 1 --use_vllm --vllm_mode colocate \
        --logging_steps 4 --beta 0.0 --use_adaptive_entropy false --num_train_epochs 2\n";
    let run = imported("trl", "x.sh", script, false).expect(script);
    let at = |start: &str| run.remarks.iter().position(|line| line.starts_with(start));
    let order =
        ["missing: ", "left out: frobnicate", "chosen: ", "left out: 3 options of the engine there, 1 off"];
    let places: Vec<Option<usize>> = order.iter().map(|start| at(start)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}: {:?}", run.remarks);
    assert_eq!(at("left out: vllm_mode"), None, "{:?}", run.remarks);
    assert_eq!(places[3], Some(run.remarks.len() - 1), "{:?}", run.remarks);
    let all = imported("trl", "x.sh", script, true).expect(script);
    for line in
        ["left out: use_vllm", "left out: vllm_mode", "left out: logging_steps", "left out: use_adaptive"]
    {
        assert!(all.remarks.iter().any(|have| have.starts_with(line)), "{line}: {:?}", all.remarks);
        assert!(all.run_file.contains(line), "{line}: {}", all.run_file);
    }
    assert!(!all.run_file.contains("--all lists them"), "{}", all.run_file);
}

/// `DistillationTrainer` was "no trl settings".
#[test]
fn r_trainers_without_a_job_are_named_with_the_nearest_method() {
    let parsed =
        "from trl import TrlParser\nparser = TrlParser((A, B))\na, b = parser.parse_args_and_config()\n";
    for (module, trainer, named, nearest) in [
        ("trl.experimental.distillation", "DistillationTrainer", "distillation", "distill"),
        ("trl.experimental.gkd", "GKDTrainer", "gkd", "distill"),
        ("trl.experimental.bco", "BCOTrainer", "BCOTrainer", "kto"),
        ("trl.experimental.online_dpo", "OnlineDPOTrainer", "OnlineDPOTrainer", "dpo"),
        ("trl.experimental.async_grpo", "AsyncGRPOTrainer", "AsyncGRPOTrainer", "grpo"),
    ] {
        for before in ["", parsed] {
            let script = format!(
                "from {module} import {trainer}\n{before}trainer = {trainer}(model=\"a/b\", args=b)\n"
            );
            let error = refused("trl", "x.py", &script);
            let text = error.to_string();
            assert_eq!(error.slug, "import-no-method", "{script}: {text}");
            assert!(text.contains(&format!("the trainer is `{named}`")), "{script}: {text}");
            assert!(text.contains(&format!("the nearest method here is `{nearest}`")), "{script}: {text}");
        }
    }
    let error = refused("openrlhf", "x.sh", "python3 -m openrlhf.cli.train_kto --pretrain a/b\n");
    assert!(error.to_string().contains("the nearest method here is `kto`"), "{error}");
}

#[test]
fn a_script_with_a_parser_says_the_same_to_the_doctor() {
    let script = "from trl import GRPOTrainer, GRPOConfig, TrlParser\nparser = TrlParser((GRPOConfig,))\n\
        (args,) = parser.parse_args_and_config()\ntrainer = GRPOTrainer(model=\"a/b\", reward_funcs=\"c\", args=args)\n";
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.py");
    std::fs::write(&path, script).expect("a file");
    let trl = find("trl").expect("a stack");
    let of_import = import(trl, &path, &Wishes::default()).expect_err("no settings");
    let of_doctor = settings(trl, &path).expect_err("no settings");
    let told = |error: &Error| (error.slug, error.message.clone(), error.facts.clone());
    assert_eq!(told(&of_import), told(&of_doctor));
    assert!(of_doctor.to_string().contains("TrlParser"), "{of_doctor}");
}

/// Its class was refused as if there were none in the script.
#[test]
fn r_classes_within_a_function_are_named_for_what_they_are() {
    for (argument, name) in [("environment_factory=Game", "Game"), ("tools=[play]", "play")] {
        let script = format!(
            "from trl import GRPOConfig, GRPOTrainer\ndef main():\n    class Game:\n        def guess(self, word: str): ...\n\
             \x20   def play(move: str): ...\n    GRPOTrainer(model=\"a/b\", args=GRPOConfig(max_steps=4), {argument})\n"
        );
        let error = refused("trl", "x.py", &script);
        let text = error.to_string();
        assert_eq!(error.slug, "import-not-built", "{text}");
        assert!(text.contains(name) && text.contains("move it to the top level"), "{text}");
    }
}

#[test]
fn a_trainer_of_the_files_own_is_refused() {
    let script = "from trl import GRPOConfig, GRPOTrainer\nclass Own(GRPOTrainer):\n    def compute_loss(self, *args): ...\n\
        Own(model=\"a/b\", args=GRPOConfig(max_steps=4), reward_funcs=\"c\")\n";
    let error = refused("trl", "x.py", script);
    assert!(
        error.to_string().contains("line 2: trainer_class = Own: its methods may change the loss"),
        "{error}"
    );
}

/// Such jobs became ones on text alone, with exit code 0.
#[test]
fn r_jobs_with_pictures_name_their_column_or_are_refused() {
    let script = |model: &str, more: &str| {
        format!(
            "{more}\nmodel = {model}\nGRPOTrainer(model=model, args=GRPOConfig(max_steps=4), reward_funcs=\"c\")\n"
        )
    };
    for (text, column) in [
        (script("\"Qwen/Qwen2.5-VL-3B-Instruct\"", ""), "images"),
        (script("AutoModelForImageTextToText.from_pretrained(\"a/b\")", ""), "images"),
        (script("Own3ForConditionalGeneration.from_pretrained(\"a/b\")", ""), "images"),
        (script("\"a/b\"", "from PIL import Image\nPICTURE = Image.open(\"x.png\")"), "images"),
        (script("\"a/b\"", "rows = data.map(lambda row: {\"image\": row[\"x\"]})"), "image"),
        (script("\"a/b\"", "tokens = AutoProcessor.from_pretrained(\"a/b\")"), "images"),
    ] {
        let run = imported("trl", "x.py", &text, false).expect(&text).run_file;
        assert!(run.contains(&format!("\nimages = \"{column}\"")), "{text}: {run}");
        assert!(run.contains("\ntower = \"train\"") && !run.contains("chat_template"), "{run}");
    }
    // Of a path that is not known as a whole the last part says it.
    for (model, is_read) in [("Qwen2-VL-2B-Instruct", false), ("Qwen2.5-VL-3B-Instruct", true)] {
        let path = format!("{VERL} actor_rollout_ref.model.path=$ROOT/{model}\n");
        match imported("verl", "x.sh", &path, false) {
            Ok(_) => assert!(is_read, "{path}"),
            Err(error) => assert!(!is_read && error.to_string().contains("pictures"), "{path}: {error}"),
        }
    }
    assert!(
        refused("trl", "x.py", &script("\"llava-hf/llava-1.5-7b-hf\"", "")).to_string().contains("pictures")
    );
}

/// Options of an array that a branch makes longer were lost, all of them.
#[test]
fn r_options_of_a_branch_are_sure_or_refused_one_by_one() {
    let check = |before: &str, words: &str, expect: &str| {
        let script = format!("{before}\n{VERL} {words}\n");
        let text = match imported("verl", "x.sh", &script, true) {
            Ok(run) => run.run_file,
            Err(error) => error.to_string(),
        };
        assert!(text.contains(expect), "{script}: no {expect:?}: {text}");
    };
    let loss = "actor_rollout_ref.actor.policy_loss.loss_mode=gspo algorithm.adv_estimator=grpo";
    let gspo = "method = \"gspo\"";
    let lora = "actor_rollout_ref.model.lora_rank=8";
    let array = format!("A=({loss})\nif [ $1 ]; then A+=(data.seed=3); fi");
    check(&array, "\"${A[@]}\"", gspo);
    check(
        &array,
        "\"${A[@]}\"",
        "left out: data.seed = 3: is set in a branch whose condition is not known here (line 2)",
    );
    let text = format!("A=\"{loss} data.val_files=$V\"\nif [ $1 ]; then A=\"$A data.seed=3\"; fi");
    check(&text, "$A", gspo);
    check(&format!("A=\"{loss} data.val_files=$V\""), "$A", gspo);
    // In both arms.
    check(&format!("if [ $1 ]; then A=({loss} a=1); else A=({loss} b=1); fi"), "\"${A[@]}\"", gspo);
    check(&format!("case $1 in x) A=({loss} a=1);; *) A=({loss});; esac"), "\"${A[@]}\"", gspo);
    // In one of them.
    for before in [
        format!("A=()\nif [ $1 ]; then A+=({lora}); fi"),
        format!("A=\"x=1 y=2\"\nif [ $1 ]; then A=\"$A {lora}\"; fi"),
        format!("case $1 in x) A=(a=1 {lora});; *) A=(a=1);; esac"),
        format!("[ $1 = x ] && A+=({lora})"),
    ] {
        check(
            &before,
            "${A[@]}",
            "lora_rank = 8: it decides the job, and is set in a branch whose condition is not known here (line ",
        );
    }
    // An arm for other machines changes nothing.
    let npu = format!("N=4\ncase $1 in\n gpu)\n A=1 ;;\n npu)\n N=8\n B=({lora}) ;;\nesac");
    check(&npu, "data.train_batch_size=$N ${B[@]}", "prompts_per_step = 4");
}

/// 0.0 was taken for a switch that is off: there a cut response has no reward then.
#[test]
fn r_a_factor_of_cut_responses_was_left_out() {
    let script = |factor: &str| {
        format!(
            "python3 -m openrlhf.cli.train_ppo_ray --pretrain a/b --reward.stop_properly_penalty_coef {factor}\n"
        )
    };
    for factor in ["0.0", "-1", "0.5"] {
        assert_eq!(refused("openrlhf", "x.sh", &script(factor)).slug, "import-not-built", "{factor}");
    }
    assert!(imported("openrlhf", "x.sh", &script("1.0"), false).is_ok());
}

/// Files for verl before 0.3 lost their KL term.
#[test]
fn r_a_coefficient_without_a_switch_was_left_out() {
    let alone = imported("verl", "x.sh", &format!("{VERL} algorithm.kl_ctrl.kl_coef=0.002\n"), false);
    let remarks = alone.expect("a run file").remarks;
    assert!(
        remarks.iter().any(|line| line.contains("before, it was there: if yours is older")),
        "{remarks:?}"
    );
    let old = "algorithm.kl_ctrl.kl_coef=0.002 actor_rollout_ref.actor.fsdp_config.grad_offload=False";
    for (more, expect) in [
        (old, Some("reward")),
        ("algorithm.kl_ctrl.kl_coef=0.002", None),
        ("algorithm.kl_ctrl.kl_coef=0.002 algorithm.use_kl_in_reward=True", Some("reward")),
        ("algorithm.kl_ctrl.kl_coef=0.002 algorithm.use_kl_in_reward=False", None),
        ("algorithm.kl_ctrl.kl_coef=0.002 actor_rollout_ref.actor.use_kl_loss=True", Some("loss")),
        ("", None),
    ] {
        let run = imported("verl", "x.sh", &format!("{VERL} {more}\n"), false).expect(more).run_file;
        let place =
            ["reward", "loss"].into_iter().find(|place| run.contains(&format!("\nkl_in = \"{place}\"")));
        assert_eq!(place, expect, "{more}: {run}");
        assert_eq!(run.contains("\nkl_coef = 0.002"), expect == Some("reward"), "{more}: {run}");
    }
}

/// The last turn alone was learnt, with exit code 0; later such a job was refused.
#[test]
fn r_sft_of_every_turn_is_imported_as_that() {
    let trl = |more: &str| {
        format!(
            "from trl import SFTConfig, SFTTrainer\nSFTTrainer(model=\"a/b\", args=SFTConfig(max_steps=4{more}))\n"
        )
    };
    let openrlhf = "python3 -m openrlhf.cli.train_sft --pretrain a/b --dataset x.jsonl";
    let verl = "torchrun -m verl.trainer.fsdp_sft_trainer model.partial_pretrain=a/b";
    for (stack, file, script, is_every) in [
        ("openrlhf", "x.sh", format!("{openrlhf} --multiturn\n"), true),
        ("openrlhf", "x.sh", format!("{openrlhf}\n"), false),
        ("verl", "x.sh", format!("{verl} data.multiturn.enable=true\n"), true),
        ("verl", "x.sh", format!("{verl} data.multiturn.enable=false\n"), false),
        ("trl", "x.py", trl(", assistant_only_loss=True"), true),
        ("trl", "x.py", trl(", assistant_only_loss=False"), false),
        ("trl", "x.py", trl(""), false),
    ] {
        let run = imported(stack, file, &script, false).expect(&script).run_file;
        assert_eq!(run.contains("\ntrain_on = \"assistant\""), is_every, "{script}: {run}");
    }
}

/// Shows that what a script sets of its configuration later was lost.
#[test]
fn r_attributes_of_a_configuration_were_left_out() {
    let script = |more: &str| {
        format!(
            "from trl import GRPOConfig, GRPOTrainer\nconfig = GRPOConfig(max_steps=4)\n{more}\n\
             GRPOTrainer(model=\"a/b\", args=config, reward_funcs=\"c\")\n"
        )
    };
    let run = imported("trl", "x.py", &script("config.loss_type = \"dr_grpo\"\nother.max_steps = 9"), false);
    let run = run.expect("a run file").run_file;
    assert!(run.contains("aggregation = \"seq_mean_token_sum_norm\"") && run.contains("steps = 4"), "{run}");
    for more in ["if x:\n    config.beta = 0.1", "config.use_adaptive_entropy = True"] {
        assert_eq!(refused("trl", "x.py", &script(more)).slug, "import-not-built", "{more}");
    }
    let optimizer = script("").replace("args=config", "args=config, optimizers=(own, None), rollout_func=f");
    let text = refused("trl", "x.py", &optimizer).to_string();
    assert!(text.contains("optimizers = (own, None)") && text.contains("rollout_func = "), "{text}");
}

#[test]
fn names_of_a_tuple_are_its_items() {
    let script = "from trl import GRPOConfig, GRPOTrainer\nname, (out) = (\"a/b\", \"runs/x\")\n\
        GRPOTrainer(model=name, args=GRPOConfig(max_steps=4, output_dir=\"y\"), reward_funcs=\"c\")\n";
    let run = imported("trl", "x.py", script, false).expect(script).run_file;
    assert!(run.contains("model = \"hf:a/b\""), "{run}");
}

/// A lambda with a comma was shown once for each part, each time as the whole list.
#[test]
fn r_a_lambda_of_a_list_is_shown_once_as_it_is_written() {
    let script = "from trl import GRPOConfig, GRPOTrainer\nfrom trl.rewards import accuracy_reward\n\
        GRPOTrainer(model=\"a/b\", args=GRPOConfig(max_steps=4), reward_funcs=[lambda c, *, k=1, **x: len(c), accuracy_reward])\n";
    let run = imported("trl", "x.py", script, false).expect(script);
    let shown = run.remarks.iter().filter(|line| line.contains("lambda")).count();
    assert_eq!(shown, 1, "{:?}", run.remarks);
    assert_eq!(run.run_file.matches("[[reward]]").count(), 2, "{}", run.run_file);
    assert!(
        run.run_file.contains("no reward here is called lambda c, *, k=1, **x: len(c)"),
        "{}",
        run.run_file
    );
    assert!(run.run_file.contains("kind = \"math\""), "{}", run.run_file);
}

/// The name of a correction was `(not shown)`, as a secret is.
#[test]
fn corrections_have_nothing_to_correct_unless_they_are_another_loss() {
    let more = |what: &str| format!("{VERL} algorithm.adv_estimator=grpo {what}\n");
    let correction =
        "algorithm.rollout_correction.rollout_is=token algorithm.rollout_correction.rollout_rs=null";
    let run = imported("verl", "x.sh", &more(correction), true).expect("a run file").run_file;
    assert!(run.contains("rollout_correction.rollout_is = token: rollout and trainer share"), "{run}");
    for what in [
        "algorithm.rollout_correction.loss_type=reinforce",
        "algorithm.use_pf_ppo=True",
        "actor_rollout_ref.model.mtp.enable_train=True",
        "actor_rollout_ref.actor.own_kl_part=$(x)",
    ] {
        assert_eq!(refused("verl", "x.sh", &more(what)).slug, "import-not-built", "{what}");
    }
    let sapo =
        "actor_rollout_ref.actor.policy_loss.loss_mode=sapo actor_rollout_ref.actor.policy_loss.tau_pos=1.0";
    let run = imported("verl", "x.sh", &more(sapo), true).expect("a run file").run_file;
    assert!(run.contains("method = \"sapo\""), "{run}");
}

#[test]
fn variables_of_the_template_are_carried() {
    let script = "from trl import GRPOConfig, GRPOTrainer\n\
                  args = GRPOConfig(output_dir='o', chat_template_kwargs={'enable_thinking': False})\n\
                  GRPOTrainer(model='Qwen/Qwen3-0.6B', args=args, train_dataset='d.jsonl', reward_funcs='e/rm')\n";
    let written = imported("trl", "x.py", script, false).expect("an import").run_file;
    assert!(squeezed(&written).contains("template_args = { enable_thinking = false }"), "{written}");
    let command = "trl grpo --model_name_or_path a/b --dataset_name d --reward_funcs e/rm \
                   --chat_template_kwargs '{\"effort\": \"low\", \"enable_thinking\": false}'\n";
    let written = imported("trl", "x.sh", command, false).expect("an import").run_file;
    let expect = "template_args = { effort = \"low\", enable_thinking = false }";
    assert!(squeezed(&written).contains(expect), "{written}");
    let command = "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=Qwen/Qwen3-8B \
                   +data.apply_chat_template_kwargs.enable_thinking=False data.train_files=a.parquet\n";
    let written = imported("verl", "x.sh", command, false).expect("an import").run_file;
    assert!(squeezed(&written).contains("template_args = { enable_thinking = false }"), "{written}");
}

/// One blank where there are several: values of a section are in columns.
fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Passes were 100 steps, although `train.epochs` counts them.
#[test]
fn r_passes_over_the_data_were_a_hundred_steps() {
    let openrlhf = "python3 -m openrlhf.cli.train_ppo_ray --pretrain a/b --prompt_data x.jsonl";
    let of_data = "python3 -m openrlhf.cli.train_sft --pretrain a/b --dataset x.jsonl";
    let trl = "trl grpo --model_name_or_path a/b --dataset_name x.jsonl";
    for (stack, text, line) in [
        ("openrlhf", format!("{openrlhf} --num_episodes 2"), "epochs = 2  # num_episodes"),
        ("openrlhf", openrlhf.into(), "epochs = 1  # default of OpenRLHF: num_episodes"),
        ("openrlhf", format!("{of_data} --max_epochs 3"), "epochs = 3  # max_epochs"),
        ("openrlhf", of_data.into(), "epochs = 2  # default of OpenRLHF: max_epochs"),
        ("openrlhf", format!("{of_data} --max_samples 1280"), "steps = 20  # max_samples x max_epochs"),
        ("trl", format!("{trl} --num_train_epochs 0.5"), "epochs = 0.5  # num_train_epochs"),
        ("trl", trl.into(), "epochs = 3  # default of TRL: num_train_epochs"),
        ("trl", format!("{trl} --max_steps 7"), "steps = 7  # max_steps"),
        ("verl", format!("{VERL} trainer.total_epochs=15"), "epochs = 15  # trainer.total_epochs"),
        ("verl", VERL.into(), "epochs = 30  # default of verl: trainer.total_epochs"),
        ("verl", format!("{VERL} data.train_files=[a.parquet,b.parquet]"), "steps = 100  # chosen"),
    ] {
        let run = imported(stack, "x.sh", &text, false).expect(&text).run_file;
        assert!(run.contains(&format!("\n{line}")), "{text}\n{run}");
        assert_ne!(run.contains("\nepochs = "), run.contains("\nsteps = "), "{text}\n{run}");
    }
    // A share of steps that only the rows tell is not one of 100.
    for (text, words) in [
        (
            format!("{openrlhf} --lr_warmup_ratio 0.1"),
            "left out: lr_warmup_ratio = 0.1: a share of the steps",
        ),
        (openrlhf.into(), "left out: default of OpenRLHF: lr_warmup_ratio = 0.03: a share of the steps"),
    ] {
        let run = imported("openrlhf", "x.sh", &text, false).expect(&text);
        assert!(run.remarks.iter().any(|line| line.starts_with(words)), "{:?}", run.remarks);
        assert!(!run.run_file.contains("\nwarmup_steps"), "{}", run.run_file);
    }
    let steps =
        imported("trl", "x.sh", &format!("{trl} --max_steps 50 --warmup_ratio 0.1"), false).expect(trl);
    assert!(steps.run_file.contains("warmup_steps = 5"), "{}", steps.run_file);
}
