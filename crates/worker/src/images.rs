//! Images of prompts on their way to functions, programs and servers: the path of a file, or its content.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

/// An image of a prompt as other people's code gets it; nothing is decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SampleImage {
    /// A file of this machine, by its whole path.
    Path(PathBuf),
    /// The content of a file, which samples of a prompt share.
    Bytes(Arc<[u8]>),
}

impl SampleImage {
    /// Returns `{"path": ..., "bytes": ...}`, of which one is null; bytes are in base64.
    pub fn to_json(&self) -> Value {
        match self {
            SampleImage::Path(path) => json!({ "path": path.to_string_lossy(), "bytes": null }),
            SampleImage::Bytes(bytes) => json!({ "path": null, "bytes": STANDARD.encode(bytes) }),
        }
    }
}

/// Returns the images of each sample as lists; none if no sample has an image.
pub fn image_lists(samples: &[Arc<[SampleImage]>]) -> Option<Vec<Value>> {
    let has_some = samples.iter().any(|images| !images.is_empty());
    has_some.then(|| samples.iter().map(|images| list(images)).collect())
}

/// Returns the lists of a batch, each once, and the number of each sample's list; none if no sample has an image.
///
/// Samples of a group share their list, so its bytes are written once for all of them.
pub(crate) fn shared_lists(samples: &[Arc<[SampleImage]>]) -> Option<Value> {
    if samples.iter().all(|images| images.is_empty()) {
        return None;
    }
    let (mut lists, mut of): (Vec<&Arc<[SampleImage]>>, Vec<usize>) = (Vec::new(), Vec::new());
    for images in samples {
        let known = lists.iter().position(|list| Arc::ptr_eq(list, images));
        of.push(known.unwrap_or(lists.len()));
        if known.is_none() {
            lists.push(images);
        }
    }
    Some(json!({ "lists": lists.iter().map(|images| list(images)).collect::<Vec<_>>(), "of": of }))
}

fn list(images: &[SampleImage]) -> Value {
    images.iter().map(SampleImage::to_json).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_groups_images_are_written_once() {
        let one: Arc<[SampleImage]> = [SampleImage::Bytes([1, 2].into())].into();
        let other: Arc<[SampleImage]> = [SampleImage::Path("/a.png".into())].into();
        let none: Arc<[SampleImage]> = Arc::default();
        let lists = shared_lists(&[one.clone(), one.clone(), other.clone(), none.clone()]).expect("images");
        assert_eq!(lists["of"], json!([0, 0, 1, 2]));
        assert_eq!(
            lists["lists"],
            json!([[{"path": null, "bytes": "AQI="}], [{"path": "/a.png", "bytes": null}], []])
        );
        assert_eq!(shared_lists(std::slice::from_ref(&none)), None);
        assert_eq!(image_lists(std::slice::from_ref(&none)), None);
        assert_eq!(image_lists(&[other, none]).map(|lists| lists.len()), Some(2));
    }
}
