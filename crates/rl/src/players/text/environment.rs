//! A text environment: its workers, and how its episodes begin and end.

use super::glue::Glue;
use crate::data::dataset::forgetting;
use crate::data::images::images_fit;
use crate::players::episodes::{Episode, Episodes};
use plimsoll_base::{Error, Result, slugs};
use plimsoll_config::{Environment, Overlong, RunSpec};
use plimsoll_infer::album::RowImage;
use plimsoll_infer::image_rows::PLACEHOLDER;
use plimsoll_infer::text::{Item, TextModel};
use plimsoll_text::Message;
use plimsoll_textenv::{EpisodeImages, Hosts, ImageTaker, ImagesFrom, Job, Kind, ReplyImages, Start};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;

/// Plays the episodes of a text environment.
pub(in crate::players) struct TextPlayer {
    pub(super) hosts: Hosts,
    pub(super) episodes: Episodes,
    overlong: Overlong,
    prompt_tokens: usize,
    /// Most tokens of an episode after its prompt.
    pub(super) response_tokens: usize,
    /// The images of each row, where rows may have some.
    images: Vec<Vec<Arc<RowImage>>>,
}

impl TextPlayer {
    /// Starts the environment of a run. `prompt_tokens`: the longest prompt of the plan.
    ///
    /// Errors: `thread-not-started`; those of reading its rows and their images.
    pub(in crate::players) fn open(
        run: &RunSpec,
        (section, kind): (&Environment, &Kind),
        text: &TextModel,
        prompt_tokens: usize,
    ) -> Result<TextPlayer> {
        let mut images = Vec::new();
        let mut settings = section.host_settings(&run.data);
        if text.album.is_some() && section.images_max > 0 {
            let (most, placeholder) = (section.images_max as usize, PLACEHOLDER.to_string());
            settings.images = Some(ReplyImages { most, placeholder });
        }
        let hosts = match (&text.album, &run.data.images) {
            (Some(album), Some(column)) => {
                let mut take = |of: EpisodeImages| {
                    let taken = album.admit(of.sources, Some(&of.folder), &of.place)?;
                    let sent = taken.iter().map(|image| image.file.clone()).collect();
                    images.push(taken);
                    Ok(sent)
                };
                let folder = run.data.image_folder.as_deref().map(Path::new);
                let from = ImagesFrom { column, folder, placeholder: PLACEHOLDER };
                let hosts = Hosts::start_with(kind, &settings, Some(ImageTaker { from, take: &mut take }))?;
                images_fit(run, album, prompt_tokens)?;
                hosts
            }
            _ => Hosts::start(kind, &settings)?,
        };
        Ok(TextPlayer {
            hosts,
            images,
            episodes: Episodes::new(run, section),
            overlong: run.data.overlong,
            prompt_tokens,
            response_tokens: run.response_tokens_max(),
        })
    }

    /// Returns what writes the environment's words as tokens.
    pub(super) fn glue<'t>(&'t self, text: &'t TextModel) -> Glue<'t> {
        Glue { text, tools: &self.hosts.about().tools }
    }

    /// Begins the `group` episodes of each start, and returns the prompt of each start.
    ///
    /// Errors: an environment whose reset fails twice; those of the template and the tokenizer; `prompt-too-long`.
    pub(super) fn begin(&mut self, text: &TextModel, starts: &[Start], group: usize) -> Result<Vec<Item>> {
        self.hosts.drain();
        self.episodes.begin_round(starts.len() * group);
        self.reset(starts, group)?;
        for (g, episodes) in self.episodes.played.chunks(group).enumerate() {
            if episodes.iter().any(|episode| episode.messages != episodes[0].messages) {
                return Err(self.begins_differently(g * group));
            }
        }
        let glue = self.glue(text);
        glue.check()?;
        let firsts: Vec<(&[Message], &[Arc<RowImage>])> = (self.episodes.played.chunks(group))
            .map(|e| (e[0].messages.as_slice(), self.images_of_row(e[0].start)))
            .collect();
        let items: Result<Vec<Item>> = forgetting(|| firsts.iter().map(|of| item(glue, *of)).collect());
        let mut items = items?;
        // What is cut may begin or end in an image.
        let may_be_cut = |item: &Item| self.overlong == Overlong::TruncateLeft && item.images.is_empty();
        let too_long = |item: &Item| item.ids.len() > self.prompt_tokens && !may_be_cut(item);
        if let Some(g) = items.iter().position(too_long) {
            return Err(self.begins_too_long(starts[g].index, items[g].ids.len()));
        }
        for (item, episodes) in items.iter_mut().zip(self.episodes.played.chunks_mut(group)) {
            episodes[1..].iter_mut().for_each(|episode| episode.columns.clear());
            item.columns = std::mem::take(&mut episodes[0].columns).into();
            item.ids.drain(..item.ids.len().saturating_sub(self.prompt_tokens));
        }
        Ok(items)
    }

    /// Returns the images of the row that begins an episode.
    pub(super) fn images_of_row(&self, start: Start) -> &[Arc<RowImage>] {
        let row = self.hosts.row_of(start).and_then(|row| self.images.get(row));
        row.map_or(&[], Vec::as_slice)
    }

    /// Makes the error of an episode that does not begin as another of its seed.
    pub(super) fn begins_differently(&self, slot: usize) -> Error {
        let message =
            format!("{}: reset begins two episodes of one seed differently", self.episodes.section.env);
        Error::new(slugs::TEXT_ENVIRONMENT_BAD_REPLY, message)
            .fact(format!("it is episode {}", self.episodes.played[slot].start.index))
            .hint("derive all randomness from the seed that reset is given")
    }

    /// Makes the error of a prompt beyond the plan's. No episode is left out: which there are follows from the seed.
    fn begins_too_long(&self, episode: u64, tokens: usize) -> Error {
        let (env, most) = (&self.episodes.section.env, self.prompt_tokens);
        let begins = format!("{env}: episode {episode} begins with {tokens} tokens, the limit is {most}");
        Error::new("prompt-too-long", begins)
            .hint("raise data.prompt_tokens_max, or set data.overlong = \"truncate-left\"")
    }

    fn reset(&mut self, starts: &[Start], group: usize) -> Result<()> {
        let count = starts.len() * group;
        let begin = |slot: usize| Episode::new(starts[slot / group], Vec::new(), Vec::new(), slot..slot + 1);
        self.episodes.played = (0..count).map(begin).collect();
        for (slot, episode) in self.episodes.played.iter().enumerate() {
            self.hosts.ask(slot, Job::Reset(episode.start));
        }
        let (mut left, mut tried) = (count, vec![false; count]);
        while left > 0 {
            let reply = self.hosts.take(true).expect("every reset has a reply");
            let episode = &mut self.episodes.played[reply.slot];
            match reply.outcome {
                Ok(said) => {
                    let said = said.unwrap_or_default();
                    (episode.messages, episode.columns) = (said.messages, said.columns);
                    episode.num_first = episode.messages.len();
                    left -= 1;
                }
                Err(error) if tried[reply.slot] => return Err(error.fact("its reset was tried twice")),
                Err(error) => {
                    // A worker is started again, and an object that raised is recreated.
                    self.episodes.events.tally.count(&error);
                    tried[reply.slot] = true;
                    self.hosts.ask(reply.slot, Job::Reset(episode.start));
                }
            }
        }
        Ok(())
    }

    /// Asks an environment that scores whole episodes for the rewards of the episodes `ended`, which go to their last
    /// turns. Returns the episodes that failed, each with its fault if it has one of its own.
    pub(super) fn reward(&mut self, ended: &[usize]) -> Vec<(usize, Option<Error>)> {
        if !self.hosts.about().scores_at_end {
            let fault = |slot: &usize| Some((*slot, Some(self.episodes.sum_fault(*slot)?)));
            return ended.iter().filter_map(fault).collect();
        }
        ended.iter().for_each(|slot| self.hosts.ask(*slot, Job::End));
        let mut failed = Vec::new();
        for _ in ended {
            let reply = self.hosts.take(true).expect("every end has a reply");
            match reply.outcome {
                Ok(Some(said)) => {
                    let turn = self.episodes.played[reply.slot].turns.last_mut().expect("a turn was played");
                    turn.reward = said.reward;
                }
                Ok(None) => failed.push((reply.slot, None)),
                Err(fault) => failed.push((reply.slot, Some(fault))),
            }
        }
        failed
    }

    /// Settles the rewards of all episodes. Those cut by their number of turns or their length are scored too.
    ///
    /// Errors: `text-environment-failing`.
    pub(super) fn settle(&mut self) -> Result<()> {
        let whole = |episode: &Episode| !episode.has_fault && !episode.turns.is_empty();
        let played = self.episodes.played.iter().enumerate();
        let ended: Vec<usize> = played.filter(|(_, of)| whole(of)).map(|(slot, _)| slot).collect();
        self.reward(&ended).into_iter().try_for_each(|(slot, fault)| self.episodes.fail(slot, fault))
    }
}

fn item(glue: Glue<'_>, (first, images): (&[Message], &[Arc<RowImage>])) -> Result<Item> {
    let (_, mut ids) = glue.prompt(first)?;
    if let Some(album) = &glue.text.album {
        let of_row = |error: Error| error.fact("it is the prompt with which an episode begins");
        ids = album.place(&ids, images).map_err(of_row)?.ids;
    }
    if ids.is_empty() {
        return Err(Error::new("prompt-empty", "an environment begins an episode without a token")
            .hint("let reset return some text"));
    }
    let shown = first.last().map(|message| message.content.clone()).unwrap_or_default();
    let message = |message: &Message| json!({ "role": message.role, "content": message.content });
    let messages = Some(Arc::new(first.iter().map(message).collect()));
    Ok(Item { ids, text: shown, messages, images: images.to_vec(), ..Item::default() })
}
