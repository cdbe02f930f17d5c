//! Tasks that draw their images: an endless training stream by index, and a fixed test set that shares no image with it
//! for any seed. A row is a pure function of task, seed and index; it has the form of a file's row with images.

mod canvas;
mod scene;

use crate::images::{ImageRow, ImageSource};
use crate::labels::of_place;
use crate::worse::with_a_digit_changed;
use crate::{LabelledRow, PairRow, Prompt, Row, SftRow};
use plimsoll_base::{Error, Result};
use scene::{Scene, Subject};
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// Names of the built-in tasks that draw.
pub const DRAWN_TASKS: [&str; 2] = ["builtin:digits", "builtin:shapes"];

/// The seed of the test sets; a run's seed does not change them.
const TEST_SEED: u64 = 0x504C_494D_534F_4C4C;
/// Rows of a test set.
const TEST_ROWS: usize = 300;

/// A task whose rows have one drawn image each.
#[derive(Clone, Debug)]
pub struct DrawnTask {
    name: &'static str,
    subject: Subject,
    test: Vec<Scene>,
    held_out: HashSet<Scene>,
}

impl DrawnTask {
    /// Returns the task of this name, if it is one that draws.
    pub fn find(name: &str) -> Option<DrawnTask> {
        let name = DRAWN_TASKS.into_iter().find(|task| *task == name)?;
        let subject = if name == DRAWN_TASKS[0] { Subject::Digits } else { Subject::Shapes };
        let (mut test, mut held_out) = (Vec::with_capacity(TEST_ROWS), HashSet::new());
        let mut index = 0;
        while test.len() < TEST_ROWS {
            let scene = Scene::draw(subject, TEST_SEED, index, 0);
            if held_out.insert(scene.clone()) {
                test.push(scene);
            }
            index += 1;
        }
        Some(DrawnTask { name, subject, test, held_out })
    }

    /// Returns row `index` of the training stream of a seed, with the image as a PNG in memory.
    ///
    /// `placeholder`: what the model's chat template writes for an image. Columns: `ground_truth`.
    pub fn train_row(&self, seed: u64, index: u64, placeholder: &str) -> ImageRow {
        // A test scene is replaced by another draw; 300 scenes of many thousands are held out.
        let mut drawn = (0..).map(|attempt| Scene::draw(self.subject, seed, index, attempt));
        let scene = drawn.find(|scene| !self.held_out.contains(scene)).expect("most scenes are not held out");
        self.row(&scene, format!("{}:{}", self.name, index + 1), placeholder)
    }

    /// Returns row `index` of the test set, which repeats after its last row.
    pub fn test_row(&self, index: u64, placeholder: &str) -> ImageRow {
        let index = (index % self.test.len() as u64) as usize;
        self.row(&self.test[index], format!("test set of {}:{}", self.name, index + 1), placeholder)
    }

    /// Returns the test set, the same for every seed.
    pub fn test_rows(&self, placeholder: &str) -> impl Iterator<Item = ImageRow> {
        (0..self.test.len() as u64).map(move |index| self.test_row(index, placeholder))
    }

    /// Returns row `index` of the training stream with its answer, to learn that.
    pub fn answer_row(&self, seed: u64, index: u64, placeholder: &str) -> ImageRow<SftRow> {
        with(self.train_row(seed, index, placeholder), |Row { prompt, columns }| {
            SftRow::answer(prompt, answer(&columns))
        })
    }

    /// Returns row `index` of the training stream as a pair: the right answer against one with a digit changed.
    pub fn pair_row(&self, seed: u64, index: u64, placeholder: &str) -> ImageRow<PairRow> {
        pair(self.train_row(seed, index, placeholder), seed, index)
    }

    /// Returns row `index` of the training stream with a label: right answers at even places, others at odd ones.
    pub fn labelled_row(&self, seed: u64, index: u64, placeholder: &str) -> ImageRow<LabelledRow> {
        with(self.pair_row(seed, index, placeholder), |pair| of_place(pair, index))
    }

    /// Returns the test set as pairs, the same for every seed.
    pub fn test_pairs(&self, placeholder: &str) -> impl Iterator<Item = ImageRow<PairRow>> {
        self.test_rows(placeholder).zip(0..).map(|(row, index)| pair(row, TEST_SEED, index))
    }

    /// Returns the test set with labels, the same for every seed.
    pub fn test_labels(&self, placeholder: &str) -> impl Iterator<Item = ImageRow<LabelledRow>> {
        self.test_pairs(placeholder).zip(0..).map(|(of, index)| with(of, |pair| of_place(pair, index)))
    }

    fn row(&self, scene: &Scene, place: String, placeholder: &str) -> ImageRow {
        let prompt = Prompt::Text(format!("{placeholder}{}", self.subject.question()));
        let columns = Map::from_iter([("ground_truth".to_string(), json!(scene.answer()))]);
        let png = canvas::png(scene);
        ImageRow { place, row: Row { prompt, columns }, images: vec![Ok(ImageSource::Bytes(png))] }
    }
}

/// Makes something else of a row, with the same images.
fn with<T, U>(of: ImageRow<T>, make: impl FnOnce(T) -> U) -> ImageRow<U> {
    ImageRow { place: of.place, row: make(of.row), images: of.images }
}

fn answer(columns: &Map<String, Value>) -> &str {
    columns["ground_truth"].as_str().expect("every row has an answer")
}

fn pair(of: ImageRow, seed: u64, index: u64) -> ImageRow<PairRow> {
    with(of, |Row { prompt, columns }| {
        let chosen = answer(&columns).to_string();
        let rejected = with_a_digit_changed(&chosen, seed, index);
        PairRow { columns, ..PairRow::of_texts(prompt, chosen, rejected) }
    })
}

/// Refuses a task that draws, where rows are read without images.
///
/// Errors: `model-takes-no-images`.
pub(crate) fn refuse_drawn(name: &str) -> Result<()> {
    if !DRAWN_TASKS.contains(&name) {
        return Ok(());
    }
    let message = format!("{name}: each row has an image, and this run reads text alone");
    Err(Error::usage("model-takes-no-images", message)
        .hint("name a model that sees, or a task of text such as builtin:addition"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_repeat_and_no_training_image_is_in_the_test_set() {
        for name in DRAWN_TASKS {
            let task = DrawnTask::find(name).unwrap();
            let image = |row: &ImageRow| match row.images[0].as_ref().unwrap() {
                ImageSource::Bytes(bytes) => bytes.clone(),
                other => panic!("{other:?}"),
            };
            let test: HashSet<Vec<u8>> = task.test_rows("").map(|row| image(&row)).collect();
            assert_eq!(test.len(), TEST_ROWS);
            let (mut answers, mut images) = (HashSet::new(), HashSet::new());
            for index in 0..400 {
                // The test set's own seed is the hardest case.
                let row = task.train_row(TEST_SEED, index, "[I]");
                assert!(!test.contains(&image(&row)), "{name} {index}");
                images.insert(image(&row));
                answers.insert(row.row.columns["ground_truth"].as_str().unwrap().to_string());
                let Prompt::Text(text) = &row.row.prompt else { panic!("text") };
                assert!(text.starts_with("[I]") && text.len() > 10);
            }
            let again = DrawnTask::find(name).unwrap().train_row(TEST_SEED, 7, "[I]");
            assert_eq!(image(&again), image(&task.train_row(TEST_SEED, 7, "[I]")));
            assert!(images.len() > 390, "{name}: {} different images", images.len());
            assert!(answers.len() >= if name == "builtin:shapes" { 9 } else { 90 }, "{name}: {answers:?}");
            assert_eq!(refuse_drawn(name).unwrap_err().slug, "model-takes-no-images");
            assert_eq!(task.test_row(TEST_ROWS as u64, "").row, task.test_row(0, "").row);
        }
        let task = DrawnTask::find("builtin:digits").unwrap();
        let (pair, label) = (task.pair_row(3, 5, "[I]").row, task.labelled_row(3, 5, "[I]").row);
        assert_eq!(json!(pair.chosen.content), task.train_row(3, 5, "").row.columns["ground_truth"]);
        assert!(pair.chosen != pair.rejected && !label.is_desirable);
        assert_eq!(
            task.test_labels("").map(|of| of.row.is_desirable).take(3).collect::<Vec<_>>(),
            [true, false, true]
        );
        assert!(DrawnTask::find("builtin:addition").is_none() && refuse_drawn("builtin:addition").is_ok());
    }
}
