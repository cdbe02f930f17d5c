//! Counts of a data set's images: how many, how many tokens, and what is wrong with some.

use plimsoll_base::Error;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What was counted. A row is known by its place, such as `train.jsonl:3`.
#[derive(Clone, Debug, Default)]
pub struct ImageTally {
    /// Rows read.
    pub rows: u64,
    /// Rows that have images.
    pub rows_with_images: u64,
    /// Images that can be prepared, and their tokens: one entry each.
    tokens: Vec<u32>,
    /// The most tokens of one row's images, and its place.
    largest: Option<(u64, String)>,
    /// The number of each failure, and the first.
    failures: BTreeMap<&'static str, (u64, Error)>,
}

impl ImageTally {
    /// Counts a row: the tokens of each image, or what is wrong with it.
    pub fn add(&mut self, place: &str, images: Vec<Result<usize, Error>>) {
        self.rows += 1;
        self.rows_with_images += u64::from(!images.is_empty());
        let mut sum = 0;
        for image in images {
            match image {
                Ok(tokens) => {
                    sum += tokens as u64;
                    self.tokens.push(u32::try_from(tokens).unwrap_or(u32::MAX));
                }
                Err(error) => self.failures.entry(error.slug).or_insert((0, error)).0 += 1,
            }
        }
        if sum > self.largest.as_ref().map_or(0, |(most, _)| *most) {
            self.largest = Some((sum, place.to_string()));
        }
    }

    /// Returns the images that can be prepared.
    pub fn images(&self) -> usize {
        self.tokens.len()
    }

    /// Returns how many images cannot be used.
    pub fn failed(&self) -> u64 {
        self.failures.values().map(|(count, _)| count).sum()
    }

    /// Returns the least, the middle and the most tokens of an image.
    pub fn spread(&self) -> Option<[u32; 3]> {
        let mut sorted = self.tokens.clone();
        sorted.sort_unstable();
        Some([*sorted.first()?, sorted[(sorted.len() - 1) / 2], *sorted.last()?])
    }

    /// Returns the numbers as an object.
    pub fn to_json(&self) -> Value {
        let [min, median, max] =
            self.spread().map_or([Value::Null, Value::Null, Value::Null], |n| n.map(Value::from));
        let failure = |(slug, (count, first)): (&&'static str, &(u64, Error))| {
            (slug.to_string(), json!({ "count": count, "first": first.message }))
        };
        json!({
            "rows": self.rows,
            "rows_with_images": self.rows_with_images,
            "images": self.images(),
            "image_tokens": self.tokens.iter().map(|&n| u64::from(n)).sum::<u64>(),
            "image_tokens_min": min,
            "image_tokens_median": median,
            "image_tokens_max": max,
            "largest_row": self.largest.as_ref().map(|(tokens, place)| json!({ "row": place, "tokens": tokens })),
            "failures": Value::Object(self.failures.iter().map(failure).collect()),
        })
    }

    /// Returns the numbers as lines.
    pub fn table(&self) -> String {
        let all: u64 = self.tokens.iter().map(|&n| u64::from(n)).sum();
        let mut text = format!("rows                {}\n", self.rows);
        text += &format!("rows with images    {}\n", self.rows_with_images);
        text += &format!("images              {}\n", self.images());
        if let Some([min, median, max]) = self.spread() {
            text += &format!("tokens of an image  {min} to {max}, median {median}; {all} in all\n");
        }
        if let Some((tokens, place)) = &self.largest {
            text += &format!("largest row         {place}: {tokens} tokens of images\n");
        }
        for (slug, (count, first)) in &self.failures {
            text += &format!("{slug:<19} {count}, the first: {}\n", first.message);
        }
        text
    }
}
