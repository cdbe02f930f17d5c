//! The images of a row as rewards and lines of samples have them: names and content, nothing decoded.

use crate::responses::KeptImage;
use plimsoll_base::Result;
use plimsoll_reward::SampleImage;
use plimsoll_text::{ImageFolder, ImageSource};
use std::sync::Arc;

/// Returns a row's images for its rewards: the whole path of a file, or the content that the row holds.
///
/// Errors: `image-missing`, `image-outside-folder`.
pub fn sample_images(images: &[ImageSource], folder: &ImageFolder) -> Result<Arc<[SampleImage]>> {
    let one = |image: &ImageSource| match image {
        ImageSource::Path(name) => folder.path_of(name).map(SampleImage::Path),
        ImageSource::Bytes(bytes) => Ok(SampleImage::Bytes(bytes.as_slice().into())),
    };
    images.iter().map(one).collect()
}

/// Returns an image as a line of samples names it. `size`: columns and rows of pixels as the model sees them; `file`:
/// its small copy, if one is kept.
pub fn kept_image(image: &ImageSource, size: [u32; 2], tokens: usize, file: Option<String>) -> KeptImage {
    let name = match image {
        ImageSource::Path(name) => Some(name.as_str()),
        ImageSource::Bytes(_) => None,
    };
    KeptImage::new(name, size, tokens, file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn files_keep_their_path_and_content_goes_along_without_a_name() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.png"), "a").unwrap();
        let folder = ImageFolder::of(&dir.path().join("d.jsonl"), None).unwrap();
        let images = [ImageSource::Path("a.png".into()), ImageSource::Bytes(vec![1, 2])];
        let sent = sample_images(&images, &folder).unwrap();
        let path = dir.path().join("a.png").canonicalize().unwrap();
        assert_eq!(*sent, [SampleImage::Path(path), SampleImage::Bytes([1, 2].into())]);
        let none = sample_images(&[ImageSource::Path("b.png".into())], &folder);
        assert_eq!(none.unwrap_err().slug, "image-missing");
        let kept = |image: &ImageSource, file: Option<String>| {
            serde_json::to_value(kept_image(image, [64, 32], 2, file)).unwrap()
        };
        assert_eq!(kept(&images[0], None), json!({"name": "a.png", "width": 64, "height": 32, "tokens": 2}));
        let content = kept(&images[1], Some("image-0.png".into()));
        assert_eq!(content, json!({"width": 64, "height": 32, "tokens": 2, "file": "image-0.png"}));
    }
}
