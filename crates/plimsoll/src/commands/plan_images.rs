//! `plan RUN --images`: every image of a run's data, decoded, resized and counted as the run's model would see it.

use crate::output;
use plimsoll_base::{Error, Result};
use plimsoll_config::RunSpec;
use plimsoll_files::{Local, resolve};
use plimsoll_images::{ImageTally, PLACEHOLDER, Processor, prepare};
use plimsoll_infer::sight::ModelProcessor;
use plimsoll_rl::data::images::each_row_with_images;
use plimsoll_text::{ImageFolder, ImageRow, ImageSource};
use std::path::Path;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Rows that are read before they are decoded together.
const ROWS_AT_ONCE: usize = 32;

/// A row whose images are not decoded yet.
struct Job {
    place: String,
    folder: ImageFolder,
    images: Vec<Result<ImageSource>>,
}

/// Prints the numbers. Exit code: 0 if every image can be used, else 1.
pub fn run(run: &RunSpec, json: bool, quiet: bool) -> Result<ExitCode> {
    let (processor, words) = processor(run)?;
    output::note(quiet, &words);
    let (mut tally, mut jobs) = (ImageTally::default(), Vec::with_capacity(ROWS_AT_ONCE));
    each_row_with_images(run, PLACEHOLDER, |folder, row| {
        let ImageRow { place, images, .. } = row;
        jobs.push(Job { place, folder: folder.clone(), images });
        if jobs.len() == ROWS_AT_ONCE {
            count(&mut tally, &mut jobs, &processor);
        }
        Ok(())
    })?;
    count(&mut tally, &mut jobs, &processor);
    output::either(json, &tally.to_json(), |_| tally.table())?;
    Ok(if tally.failed() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Decodes the images of some rows on all cores, and counts them in the order of the rows.
fn count(tally: &mut ImageTally, jobs: &mut Vec<Job>, processor: &Processor) {
    let next = AtomicUsize::new(0);
    let counted: Vec<OnceLock<Vec<Result<usize>>>> = jobs.iter().map(|_| OnceLock::new()).collect();
    let work = || {
        while let Some((job, counted)) = {
            let i = next.fetch_add(1, Ordering::Relaxed);
            jobs.get(i).zip(counted.get(i))
        } {
            let images = job.images.iter().enumerate().map(|(i, image)| tokens(job, i, image, processor));
            counted.set(images.collect()).expect("each row is counted once");
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
        for _ in 1..threads {
            // Without further threads this one does the work.
            let _ = std::thread::Builder::new().name("images".into()).spawn_scoped(scope, work);
        }
        work();
    });
    for (job, counted) in jobs.iter().zip(counted) {
        tally.add(&job.place, counted.into_inner().expect("all rows are counted"));
    }
    jobs.clear();
}

/// Returns the tokens of a row's image.
fn tokens(job: &Job, index: usize, image: &Result<ImageSource>, processor: &Processor) -> Result<usize> {
    let place = format!("{}: image {}", job.place, index + 1);
    let source = image.as_ref().map_err(Error::clone)?;
    let bytes = source.read(&job.folder).map_err(|mut error| {
        error.message = format!("{place}: {}", error.message);
        error
    })?;
    prepare(&bytes, processor).map(|image| image.tokens).map_err(|fault| fault.at(&place))
}

/// Returns how the run's model wants its images, and words about where that is from.
///
/// Errors: `image-processor-invalid`; those of finding the model, but not that it is elsewhere.
fn processor(run: &RunSpec) -> Result<(Processor, String)> {
    let folder = match resolve(&run.model, run.model_options.revision.as_deref(), false) {
        Ok(Local::Directory(folder)) => Some(folder),
        _ => None,
    };
    let of = ModelProcessor::of(folder.as_deref(), &run.data)?;
    let Processor { pixels_min, pixels_max, .. } = of.processor;
    let factor = of.processor.factor();
    let from = match (of.is_of_family, of.has_file) {
        (true, true) => format!("as the files of {} say", shown(folder.as_deref())),
        (true, false) => format!("as {} publishes it", of.family),
        // What is drawn at random has no files that say it.
        (false, _) if run.model.starts_with("random:") => format!("as {} publishes it", of.family),
        (false, _) => format!("as {} publishes it, because {} sees no images", of.family, run.model),
    };
    let words =
        format!("a token is {factor} x {factor} pixels, an image {pixels_min} to {pixels_max}: {from}");
    Ok((of.processor, words))
}

fn shown(folder: Option<&Path>) -> String {
    folder.map_or(String::new(), |folder| folder.display().to_string())
}
