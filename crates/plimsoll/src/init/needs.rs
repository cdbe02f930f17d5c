//! Finds files that a run file names but that do not exist yet.

use plimsoll_config::Loaded;
use plimsoll_files::Source;
use std::path::Path;

/// Returns (key, path) of each file or folder that `loaded` reads and that does not exist.
pub fn missing(loaded: &Loaded) -> Vec<(&'static str, String)> {
    let run = &loaded.run;
    let model = Some(run.model.as_str()).filter(|_| run.environment.is_none());
    let teachers = run.distill.iter().flat_map(|distill| distill.teacher_models());
    let models =
        model.map(|name| ("model", name)).into_iter().chain(teachers.map(|name| ("distill.teacher", name)));
    let models = models.filter_map(|(key, name)| Some((key, local_model(name)?)));
    let data =
        run.data.files().filter(|path| !path.starts_with("hf:")).map(|path| ("data", path.to_string()));
    let rewards = run.reward.iter().filter_map(|reward| {
        let file = reward.kind.strip_prefix("python:")?.rsplit_once(':')?.0;
        Some(("reward", file.to_string()))
    });
    models.chain(data).chain(rewards).filter(|(_, path)| !Path::new(path).exists()).collect()
}

fn local_model(name: &str) -> Option<String> {
    match Source::parse(name, None) {
        Ok(Source::Directory(_) | Source::Gguf(_)) => Some(name.to_string()),
        _ => None,
    }
}
