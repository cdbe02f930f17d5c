//! What an image shows, drawn from a seed and an index. Equal scenes are equal images.

use plimsoll_base::rng::{Stream, below, philox};

/// What the images of a task show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    /// One to nine shapes on 64 x 64 pixels, which are to be counted.
    Shapes,
    /// Two digits on 64 x 32 pixels, which are to be read.
    Digits,
}

/// A figure of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Figure {
    Circle,
    Square,
    Triangle,
    /// From 0 to 9.
    Digit(u8),
}

/// A figure in its place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Mark {
    pub(super) figure: Figure,
    /// The first column and row.
    pub(super) at: [u32; 2],
    /// Pixels of a shape's side, or of a digit's dot.
    pub(super) size: u32,
    pub(super) colour: [u8; 3],
}

/// An image before it is drawn.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Scene {
    pub(super) width: u32,
    pub(super) height: u32,
    /// The grey of the ground.
    pub(super) ground: u8,
    /// From left to right, and shapes row after row. None lies on another.
    pub(super) marks: Vec<Mark>,
}

/// Greys of the ground, each far from every colour.
const GROUNDS: [u8; 4] = [0, 24, 232, 255];
const COLOURS: [[u8; 3]; 6] =
    [[220, 40, 40], [40, 160, 60], [60, 90, 230], [230, 130, 20], [160, 60, 200], [20, 150, 170]];
/// Pixels of a cell of the grid of shapes, and its cells.
const CELL: u32 = 16;
const CELLS: u32 = 16;
/// Most shapes; their number is one digit.
const SHAPES_MAX: u32 = 9;
/// Sides of shapes.
const SIDES: [u32; 5] = [8, 9, 10, 11, 12];
/// Digits of an image, the pixels of the square that each lies in, and of a dot of its 5 x 7 dots.
const DIGITS: u32 = 2;
const SQUARE: u32 = 32;
const DOT: u32 = 3;

impl Subject {
    /// Returns the words after the image.
    pub(super) fn question(self) -> &'static str {
        match self {
            Subject::Shapes => "How many shapes are in the image? Answer with the number alone.",
            Subject::Digits => "Which digits are in the image? Answer with them alone.",
        }
    }
}

/// Numbers of one draw of a scene, one after the other.
struct Draws {
    seed: u64,
    index: u64,
    next: u64,
}

impl Draws {
    /// Returns a number below `most`.
    fn below(&mut self, most: u32) -> u32 {
        let r = philox(self.seed, Stream::Task, self.index, self.next);
        self.next += 1;
        below(r[0], r[1], u64::from(most)) as u32
    }

    fn one_of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u32) as usize]
    }
}

impl Scene {
    /// Draws the scene of an index; each attempt gives another.
    pub(super) fn draw(subject: Subject, seed: u64, index: u64, attempt: u64) -> Scene {
        // A scene takes less than 2^16 numbers.
        let mut draws = Draws { seed, index, next: attempt << 16 };
        let ground = draws.one_of(&GROUNDS);
        let (height, marks) = match subject {
            Subject::Shapes => (4 * CELL, shapes(&mut draws)),
            Subject::Digits => (SQUARE, digits(&mut draws)),
        };
        Scene { width: 4 * CELL, height, ground, marks }
    }

    /// Returns what a right response is: the number of shapes, or the digits.
    pub(super) fn answer(&self) -> String {
        let digit = |mark: &Mark| match mark.figure {
            Figure::Digit(digit) => Some(char::from(b'0' + digit)),
            _ => None,
        };
        let digits: String = self.marks.iter().filter_map(digit).collect();
        if digits.is_empty() { self.marks.len().to_string() } else { digits }
    }
}

/// Draws one to nine shapes in cells of their own.
fn shapes(draws: &mut Draws) -> Vec<Mark> {
    let mut left = 1 + draws.below(SHAPES_MAX);
    let mut marks = Vec::with_capacity(left as usize);
    for cell in 0..CELLS {
        // Each choice of cells is as likely as every other.
        if draws.below(CELLS - cell) >= left {
            continue;
        }
        left -= 1;
        let size = draws.one_of(&SIDES);
        let mut place = |cell: u32| CELL * cell + 1 + draws.below(CELL - 1 - size);
        let at = [place(cell % 4), place(cell / 4)];
        let figure = draws.one_of(&[Figure::Circle, Figure::Square, Figure::Triangle]);
        marks.push(Mark { figure, at, size, colour: draws.one_of(&COLOURS) });
    }
    marks
}

/// Draws two digits in squares of their own.
fn digits(draws: &mut Draws) -> Vec<Mark> {
    let digit = |square: u32| {
        let figure = Figure::Digit(draws.below(10) as u8);
        let mut place = |dots: u32| 1 + draws.below(SQUARE - 1 - dots * DOT);
        let at = [SQUARE * square + place(5), place(7)];
        Mark { figure, at, size: DOT, colour: draws.one_of(&COLOURS) }
    };
    (0..DIGITS).map(digit).collect()
}
