//! Colours as Pillow converts them to RGB: greys are doubled, what is transparent is laid on white, CMYK is inked.

/// Returns `a * b / 255`, rounded as Pillow rounds.
fn product(a: u8, b: u8) -> u8 {
    let product = u32::from(a) * u32::from(b) + 128;
    (((product >> 8) + product) >> 8) as u8
}

/// Returns three bytes for each grey.
pub(crate) fn of_grey(grey: &[u8]) -> Vec<u8> {
    grey.iter().flat_map(|&grey| [grey; 3]).collect()
}

/// Lays colours of four bytes, of which the last is the alpha, on white.
pub(crate) fn on_white(rgba: &[u8]) -> Vec<u8> {
    let pixels = rgba.chunks_exact(4);
    pixels.flat_map(|pixel| [pixel[0], pixel[1], pixel[2]].map(|byte| laid(byte, pixel[3]))).collect()
}

/// Lays greys of two bytes, of which the second is the alpha, on white.
pub(crate) fn grey_on_white(grey: &[u8]) -> Vec<u8> {
    grey.chunks_exact(2).flat_map(|pixel| [laid(pixel[0], pixel[1]); 3]).collect()
}

/// Returns a byte with this alpha on white, in the fixed point of Pillow's `alpha_composite`.
fn laid(byte: u8, alpha: u8) -> u8 {
    let (over, under) = (u32::from(alpha) << 7, (255 - u32::from(alpha)) << 7);
    let sum = u32::from(byte) * over + 255 * under + (0x80 << 7);
    ((((sum >> 8) + sum) >> 8) >> 7) as u8
}

/// Converts inks as a JPEG stores them, 255 for none, to RGB.
pub(crate) fn of_inks(cmyk: &[u8]) -> Vec<u8> {
    let pixels = cmyk.chunks_exact(4);
    pixels.flat_map(|pixel| [pixel[0], pixel[1], pixel[2]].map(|ink| inked(ink, pixel[3]))).collect()
}

/// Returns what a colour's paper and the black's paper leave of white.
fn inked(paper: u8, black_paper: u8) -> u8 {
    black_paper.saturating_sub(product(255 - paper, black_paper))
}

/// Converts luma and two chromas to RGB in place, by libjpeg's tables in 16 bits of fraction. Pixels have `N` bytes, of
/// which others stay as they are. `inverts` gives 255 minus the colours, as YCCK has them.
pub(crate) fn of_luma<const N: usize>(bytes: &mut [u8], inverts: bool) {
    let table = |factor: i32, half: i32| {
        std::array::from_fn::<i32, 256, _>(|chroma| factor * (chroma as i32 - 128) + half)
    };
    const HALF: i32 = 1 << 15;
    // 1.402, 1.772, 0.714136286 and 0.344136286, times 65,536.
    let (red, blue) = (table(91_881, HALF), table(116_130, HALF));
    let (green_of_red, green_of_blue) = (table(-46_802, 0), table(-22_554, HALF));
    let clamped = |value: i32| value.clamp(0, 255) as u8;
    for pixel in bytes.chunks_exact_mut(N) {
        let (luma, cb, cr) = (i32::from(pixel[0]), usize::from(pixel[1]), usize::from(pixel[2]));
        let added = [red[cr] >> 16, (green_of_blue[cb] + green_of_red[cr]) >> 16, blue[cb] >> 16];
        for (byte, added) in pixel.iter_mut().zip(added) {
            let value = luma + added;
            *byte = clamped(if inverts { 255 - value } else { value });
        }
    }
}
