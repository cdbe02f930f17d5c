//! The keys of a `[[reward]]` table that a judge alone has.

/// How a judge is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct JudgeSpec {
    /// The address of an OpenAI-compatible server, to its `/v1`; `kind = "judge:URL"` has it too.
    pub url: Option<String>,
    /// The name of the model in requests; none is sent if `None`.
    pub model: Option<String>,
    /// The file with the text of a request; `None` for the built-in one.
    pub prompt: Option<String>,
    /// Criteria that the judge answers with yes or no; empty for one number.
    pub rubric: Vec<String>,
    /// The weight of each criterion; empty for equal ones.
    pub rubric_weights: Vec<f64>,
    /// The numbers that become 0 and 1.
    pub scale: [f64; 2],
    /// The temperature of requests.
    pub temperature: f64,
    /// Most tokens of a reply.
    pub max_tokens: u32,
    /// The environment variable with the server's key.
    pub key_env: Option<String>,
    /// The share of samples that are asked about a second time.
    pub second_ask: f64,
}

impl Default for JudgeSpec {
    fn default() -> JudgeSpec {
        JudgeSpec {
            url: None,
            model: None,
            prompt: None,
            rubric: Vec::new(),
            rubric_weights: Vec::new(),
            scale: [0.0, 10.0],
            temperature: 0.0,
            max_tokens: 1024,
            key_env: None,
            second_ask: 0.0,
        }
    }
}
