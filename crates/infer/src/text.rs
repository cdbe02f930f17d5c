//! Text as tokens: the tokenizer and the chat template of a model, and prompts with what their rewards need.

use crate::album::{Album, RowImage};
use crate::form::{TextForm, open_form};
use crate::models::other_tokens;
use crate::teacher_prompt::TeacherPrompt;
use crate::teacher_text::TeacherText;
use plimsoll_arch::TokenRun;
use plimsoll_base::{Error, Result};
use plimsoll_config::{AnsweredPrompts, Data, Overlong, Rollout};
use plimsoll_files::OpenModel;
use plimsoll_text::{
    Aligner, AnsweredPrompt, ChatTemplate, ImageFolder, ImageRow, Message, Prompt, Row, RowTokenizer, Side,
    Strings, Tokenizer, end_token, template_variables,
};
use serde_json::{Map, Value};
use std::ops::Range;
use std::sync::Arc;

/// Characters of a prompt that are shown as a run begins.
const SHOWN_CHARS: usize = 240;

/// Converts strings to tokens for one model.
#[derive(Clone, Debug)]
pub struct TextModel {
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template of the model or the run file.
    pub template: Option<Arc<ChatTemplate>>,
    /// Put before every conversation.
    pub system_prompt: Option<String>,
    /// The form that a prompt gets which is a string.
    pub strings: Strings,
    /// Ends a supervised completion of plain text.
    pub eos: Option<u32>,
    /// Tokens that end a response: those of the model's configuration, and the tokenizer's own end.
    pub ends: Vec<u32>,
    /// How rows are read.
    pub rules: RowRules,
    /// The prompt that a teacher reads, if it reads another.
    pub teacher_prompt: Option<TeacherPrompt>,
    /// The text side of a teacher that may have other tokens.
    pub teacher_text: Option<Arc<TeacherText>>,
    /// The images of rows, where a model sees and its data have images.
    pub album: Option<Arc<Album>>,
    /// What responses are held to.
    pub form: Option<Arc<TextForm>>,
}

/// How rows are read, besides their columns.
#[derive(Clone, Debug, Default)]
pub struct RowRules {
    /// Tokens that no answer has: the model gives them no probability.
    pub suppressed: TokenRun,
    /// The treatment of a prompt that ends with the assistant's words.
    pub answered: AnsweredPrompt,
    /// Columns and fields of messages that are left out.
    pub ignored: Vec<String>,
    /// True if text of no template begins with what the tokenizer puts before a text.
    pub begins: bool,
}

impl RowRules {
    pub fn of(data: &Data) -> RowRules {
        let answered = match data.answered {
            AnsweredPrompts::Error => AnsweredPrompt::Refused,
            AnsweredPrompts::DropTurn => AnsweredPrompt::WithoutAnswer,
            AnsweredPrompts::Continue => AnsweredPrompt::Continued,
        };
        let ignored = data.ignore.clone();
        RowRules { suppressed: TokenRun::default(), answered, ignored, begins: data.add_special_tokens }
    }
}

/// One prompt with what its rewards need.
#[derive(Clone, Debug, Default)]
pub struct Item {
    pub ids: Vec<u32>,
    /// The prompt that a teacher reads; empty if it reads the student's.
    pub teacher: Vec<u32>,
    /// The prompt as text, for rewards and samples.
    pub text: String,
    /// The conversation, where the prompt is one; copies of an item share it, as they do the columns.
    pub messages: Option<Arc<Value>>,
    pub columns: Arc<Map<String, Value>>,
    /// The images of the prompt in order, whose vectors' numbers are among `ids`.
    pub images: Vec<Arc<RowImage>>,
    /// The target of a supervised run, or the chosen answer of a pair; otherwise empty.
    pub completion: Vec<u32>,
    /// The tokens of `completion` that are learnt; the whole of it if there is none.
    pub learnt: Vec<Range<u32>>,
    pub set: usize,
    pub rejected: Vec<u32>,
    /// The amount by which the chosen answer should score higher.
    pub margin: f32,
}

impl Item {
    /// Returns the host bytes of its tokens.
    pub fn token_bytes(&self) -> u64 {
        let tokens: usize =
            [&self.ids, &self.teacher, &self.completion, &self.rejected].map(Vec::capacity).iter().sum();
        tokens as u64 * 4 + self.learnt.capacity() as u64 * 8
    }
}

/// Opens the tokenizer and the chat template of a model.
///
/// Errors: those of reading them; `bad-value`.
pub fn text_model(model: &OpenModel, data: &Data) -> Result<TextModel> {
    let mut tokenizer = Tokenizer::from_files(&model.tokenizer, model.spec.vocab)?;
    let template = match data.chat_template.as_deref() {
        None => ChatTemplate::from_files(&model.tokenizer)?,
        Some("none") => None,
        Some(setting) => Some(ChatTemplate::from_setting(setting)?.with_tokens_of(&model.tokenizer)),
    };
    if let (None, Some(name)) = (&template, data.template_args.keys().next()) {
        let message =
            format!("data.template_args.{name} has no template to go to: {} has none", model.source);
        return Err(Error::usage("bad-value", message).hint("set data.chat_template, or remove it"));
    }
    let template = template.map(|template| template.with_arguments(&data.template_args));
    let strings = Strings::of(template.as_ref());
    let system_prompt = data.system_prompt.clone();
    tokenizer.keep_marks(&template.as_ref().map(ChatTemplate::kept_marks).unwrap_or_default());
    let of_form = template.as_ref().map_or(&[][..], ChatTemplate::ends).iter().map(|end| end.to_string());
    let mut ends = model.eos_token_ids.clone();
    for end in end_token(&model.tokenizer).into_iter().chain(of_form) {
        ends.extend(tokenizer.token_id(&end).filter(|id| !ends.contains(id)));
    }
    Ok(TextModel {
        tokenizer: tokenizer.into(),
        template: template.map(Into::into),
        system_prompt,
        strings,
        eos: ends.first().copied(),
        ends,
        rules: RowRules { suppressed: model.spec.suppressed, ..RowRules::of(data) },
        teacher_prompt: None,
        teacher_text: None,
        album: None,
        form: None,
    })
}

impl TextModel {
    /// Holds responses to what the run file says.
    ///
    /// Errors: those of `open_form`.
    pub fn held(self, rollout: &Rollout, model: &OpenModel) -> Result<TextModel> {
        let form = open_form(rollout, (&self.tokenizer, &self.ends), model)?;
        Ok(TextModel { form, ..self })
    }

    /// Returns it with the text side of a teacher that may have another tokenizer than `student`, its own model. A
    /// template of the run file is for both; otherwise each has its own, and a teacher without one the student's.
    ///
    /// Errors: those of `text_model`, `teacher-not-aligned`.
    pub fn with_teacher(self, data: &Data, student: &OpenModel, teacher: &OpenModel) -> Result<TextModel> {
        // The published shape of a model that is elsewhere, which only plans have.
        let tokens = &teacher.tokenizer;
        let is_shape = teacher.random && !tokens.bytes && tokens.tokenizer_json.is_none();
        let same = is_shape || other_tokens(student, teacher)?.is_none();
        let has_own = !same
            && (data.chat_template.is_some() || ChatTemplate::from_files(&teacher.tokenizer)?.is_some());
        let tokenizer = if same {
            self.tokenizer.clone()
        } else {
            Tokenizer::from_files(&teacher.tokenizer, teacher.spec.vocab)
                .map_err(|error| error.fact("it is distill.teacher's"))?
                .into()
        };
        let (template, strings) = if has_own {
            text_model(teacher, data).map(|own| (own.template, own.strings))?
        } else {
            (self.template.clone(), self.strings.clone())
        };
        let side = |tokenizer: &Arc<Tokenizer>, model: &OpenModel| Side {
            tokenizer: tokenizer.clone(),
            ends: model.eos_token_ids.clone(),
        };
        let aligner = Aligner::new(side(&self.tokenizer, student), side(&tokenizer, teacher), same)
            .map_err(|error| error.fact(format!("distill.teacher is {}", teacher.source)))?;
        let teacher_text = TeacherText { aligner, tokenizer, template, strings, borrows_template: !has_own };
        Ok(TextModel { teacher_text: Some(Arc::new(teacher_text)), ..self })
    }

    /// Returns the special token with which the template ends the assistant's turn, if it ends no response.
    pub fn turn_end(&self) -> Option<u32> {
        let after = self.template.as_ref()?.after_answer().ok()?;
        let first = self.tokenizer.encode(after.trim_start()).ok()?.first().copied()?;
        (self.tokenizer.is_special(first) && !self.ends.contains(&first)).then_some(first)
    }

    /// Warns of a template that ends a turn with a token that ends no response.
    pub fn turn_end_warning(&self) -> Option<String> {
        let name = |id: u32| self.tokenizer.token_text(id).unwrap_or_else(|| format!("token {id}"));
        let end = name(self.turn_end()?);
        let ends: Vec<String> = self.ends.iter().map(|id| name(*id)).collect();
        let ends =
            if ends.is_empty() { "nothing does".to_string() } else { format!("{} does", ends.join(" or ")) };
        Some(format!(
            "the chat template ends a turn with {end}, which ends no response: {ends}; responses go on after it, unless rollout.stop = [{end:?}] or eos_token_id of the model has it"
        ))
    }

    /// Returns what turns rows into tokens.
    pub fn rows(&self) -> RowTokenizer<'_> {
        RowTokenizer {
            tokenizer: &self.tokenizer,
            template: self.template.as_deref(),
            system_prompt: self.system_prompt.as_deref(),
            strings: &self.strings,
            eos: self.eos,
            begins: self.rules.begins,
            continues: self.rules.answered == AnsweredPrompt::Continued,
        }
    }

    /// Returns a row as tokens, with what its rewards need.
    ///
    /// Errors: those of tokenizing; `data-bad-prompt` for variables of the template that are none.
    pub fn item(&self, row: Row) -> Result<Item> {
        let variables = template_variables(&row.columns)?;
        let ids = self.rows().prompt(&row.prompt, &variables)?;
        let taught = self.teacher_prompt.as_ref().map(|teacher| teacher.of(&row)).transpose()?;
        let teacher = match (&self.teacher_text, &taught) {
            (Some(text), _) => text.prompt_ids(
                taught.as_ref().unwrap_or(&row.prompt),
                &variables,
                taught.is_some(),
                self.rows(),
                &ids,
            )?,
            (None, Some(prompt)) => self.rows().prompt(prompt, &variables)?,
            (None, None) => Vec::new(),
        };
        let (text, messages) = (prompt_text(&row.prompt), prompt_messages(&row.prompt));
        Ok(Item { ids, teacher, text, messages, columns: row.columns.into(), ..Item::default() })
    }

    /// Returns a row with images as tokens and numbers of vectors. `folder`: where names of files are looked for.
    ///
    /// Errors: those of `item`; `image-count`; those of reading the headers of images.
    pub fn image_item(&self, of: ImageRow, folder: Option<&Arc<ImageFolder>>) -> Result<Item> {
        let item = self.item(of.row)?;
        let Some(album) = &self.album else { return Ok(item) };
        let (ids, images) = album.take(&item.ids, of.images, folder, &of.place)?;
        let teacher = if item.teacher.is_empty() {
            item.teacher
        } else {
            let of_teacher = |error: Error| {
                let error = error.fact(format!("the row: {}", of.place));
                error.fact("it is the prompt as the teacher reads it")
            };
            album.place(&item.teacher, &images).map_err(of_teacher)?.ids
        };
        Ok(Item { ids, teacher, images, ..item })
    }

    /// Describes what was done to a prompt, and shows it as the model reads it.
    pub fn first_prompt_words(&self, item: &Item) -> String {
        let is_chat = item.messages.is_some();
        let form = match (&self.strings, is_chat || self.system_prompt.is_some()) {
            (_, true) => "prompts are conversations in the chat template",
            (Strings::Chat { .. }, false) if self.strings.wraps(&item.text) => {
                "each prompt is a user message in the chat template (data.chat_template = \"none\" takes it as it is)"
            }
            (Strings::Chat { .. }, false) => {
                "prompts already contain the chat template's marks and are taken as they are"
            }
            (Strings::Raw, false) => "prompts are taken as they are",
        };
        let is_plain = !is_chat && self.system_prompt.is_none() && !self.strings.wraps(&item.text);
        let beginning = if is_plain && self.rules.begins {
            self.tokenizer.decode(self.tokenizer.beginning_of(&item.text), false)
        } else {
            String::new()
        };
        let form = if beginning.is_empty() {
            form.to_string()
        } else {
            format!("{form}, after {beginning:?} as the tokenizer has it (data.add_special_tokens)")
        };
        let shown = self.tokenizer.decode(&item.ids, false);
        format!("{form}; the first: {:?}", shortened(&shown, SHOWN_CHARS))
    }
}

/// Cuts the middle out of a text of more than `most` characters.
fn shortened(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_string();
    }
    let head: String = text.chars().take(most / 2).collect();
    let tail: String = text.chars().skip(count - most / 2).collect();
    format!("{head} ... {tail}")
}

/// Returns the last message of a conversation, or the text itself: the prompt as a reward function sees it.
pub fn prompt_text(prompt: &Prompt) -> String {
    match prompt {
        Prompt::Text(text) => text.clone(),
        Prompt::Messages(messages) => messages.last().map(|m| m.content.clone()).unwrap_or_default(),
    }
}

/// Returns a conversation in the form that functions of other stacks take: a list of `{"role", "content"}` with what
/// else a message has.
pub fn prompt_messages(prompt: &Prompt) -> Option<Arc<Value>> {
    match prompt {
        Prompt::Text(_) => None,
        Prompt::Messages(messages) => Some(Arc::new(messages.iter().map(Message::to_json).collect())),
    }
}

/// `data.prompt_tokens_max` and what to do with a longer prompt.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    prompt_tokens: Option<usize>,
    overlong: Overlong,
}

impl Limit {
    pub fn of(data: &Data) -> Limit {
        Limit { prompt_tokens: data.prompt_tokens_max.map(|n| n as usize), overlong: data.overlong }
    }

    /// Returns the item within the limit; `None` if it is dropped.
    pub fn apply(&self, mut item: Item, name: &str, row: usize) -> Result<Option<Item>> {
        if item.ids.is_empty() {
            let message = format!("{name}: row {} has a prompt without a token", row + 1);
            return Err(
                Error::new("prompt-empty", message).hint("give the row a prompt, or take it out of the file")
            );
        }
        let length = item.ids.len().max(item.teacher.len());
        let Some(limit) = self.prompt_tokens.filter(|&limit| limit < length) else { return Ok(Some(item)) };
        match self.overlong {
            Overlong::Drop => Ok(None),
            // What is cut may begin or end in an image.
            Overlong::TruncateLeft if !item.images.is_empty() => Err(self.too_long(name, row, length)),
            Overlong::TruncateLeft => {
                for ids in [&mut item.ids, &mut item.teacher] {
                    ids.drain(..ids.len().saturating_sub(limit));
                    ids.shrink_to_fit();
                }
                Ok(Some(item))
            }
            Overlong::Error => Err(self.too_long(name, row, length)),
        }
    }

    /// Returns the error for a prompt of `length` tokens.
    pub fn too_long(&self, name: &str, row: usize, length: usize) -> Error {
        let limit = self.prompt_tokens.unwrap_or(0);
        let message =
            format!("{name}: row {} has {length} tokens, data.prompt_tokens_max is {limit}", row + 1);
        let error = Error::new("prompt-too-long", message);
        if name.starts_with("builtin:") {
            error.hint("raise data.prompt_tokens_max; all rows of a task have about that length")
        } else {
            error.hint("raise data.prompt_tokens_max, or set data.overlong = \"drop\" or \"truncate-left\"")
        }
    }
}

/// Returns the error for a data set of which no row is left.
pub fn no_rows(name: &str) -> Error {
    Error::new("data-empty", format!("{name}: no row is left"))
        .hint("raise data.prompt_tokens_max, or check the file")
}
