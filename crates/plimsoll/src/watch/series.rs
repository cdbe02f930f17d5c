//! The curves of a run in bounded memory: buckets of consecutive steps with the mean, minimum and maximum of each
//! metric. When all buckets are used, neighbours are merged in pairs and each new one takes twice the steps.

use std::fmt::Write as _;

/// Buckets of a run. For 100,000 steps each holds 64: more than one bucket per pixel of a wide chart.
pub const BUCKETS_MAX: usize = 2048;
/// Metrics of a run; a reward may add names. More are counted and left out.
pub const METRICS_MAX: usize = 96;
/// Longest name of a metric, in bytes.
const NAME_BYTES_MAX: usize = 120;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    sum: f64,
    count: u32,
    min: f32,
    max: f32,
}

const EMPTY: Cell = Cell { sum: 0.0, count: 0, min: f32::INFINITY, max: f32::NEG_INFINITY };

impl Cell {
    fn add(&mut self, value: f64) {
        self.join(Cell { sum: value, count: 1, min: value as f32, max: value as f32 });
    }

    fn join(&mut self, other: Cell) {
        self.sum += other.sum;
        self.count += other.count;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    fn mean(&self) -> f64 {
        self.sum / f64::from(self.count)
    }
}

/// The steps of a bucket, and the offset of the first of them in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bucket {
    first: u32,
    last: u32,
    count: u32,
    offset: u64,
}

#[derive(Clone, Debug)]
pub struct Series {
    buckets_max: usize,
    /// Steps of a full bucket.
    width: u32,
    buckets: Vec<Bucket>,
    names: Vec<String>,
    /// One for each metric, each as long as `buckets`.
    columns: Vec<Vec<Cell>>,
    /// Number of times a metric was left out because there are too many.
    pub names_left_out: u64,
    /// Incremented when buckets that a page may hold become invalid.
    pub epoch: u64,
}

impl Series {
    /// Series of different `epoch` share no buckets.
    pub fn new(epoch: u64) -> Series {
        Series::with_buckets(epoch, BUCKETS_MAX)
    }

    /// Is of at most `buckets_max` buckets, an even number.
    pub fn with_buckets(epoch: u64, buckets_max: usize) -> Series {
        Series {
            buckets_max,
            width: 1,
            buckets: Vec::new(),
            names: Vec::new(),
            columns: Vec::new(),
            names_left_out: 0,
            epoch,
        }
    }

    #[cfg(test)]
    pub fn width(&self) -> u32 {
        self.width
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.buckets.len()
    }

    pub fn last_step(&self) -> Option<u32> {
        self.buckets.last().map(|bucket| bucket.last)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// Returns the offset in the log of step `from`, or of one before it.
    pub fn offset_of(&self, from: u32) -> u64 {
        let after = self.buckets.partition_point(|bucket| bucket.first <= from);
        after.checked_sub(1).map_or(0, |at| self.buckets[at].offset)
    }

    /// Adds a step at `offset` of the log. A step at or before the last one removes everything from there on:
    /// the run continued from an earlier checkpoint. Values that are not numbers are left out.
    pub fn add<'n>(&mut self, step: u32, offset: u64, values: impl Iterator<Item = (&'n str, f64)>) {
        if self.last_step().is_some_and(|last| step <= last) {
            self.rewind(step);
        }
        let full = self.buckets.last().is_none_or(|bucket| bucket.count >= self.width);
        if full && self.buckets.len() == self.buckets_max {
            self.halve();
        }
        match self.buckets.last_mut().filter(|bucket| bucket.count < self.width) {
            Some(bucket) => (bucket.last, bucket.count) = (step, bucket.count + 1),
            None => {
                self.buckets.push(Bucket { first: step, last: step, count: 1, offset });
                self.columns.iter_mut().for_each(|column| column.push(EMPTY));
            }
        }
        let at = self.buckets.len() - 1;
        for (name, value) in values.filter(|(_, value)| value.is_finite()) {
            if let Some(column) = self.column(name) {
                column[at].add(value);
            }
        }
    }

    fn column(&mut self, name: &str) -> Option<&mut Vec<Cell>> {
        let at = match self.names.iter().position(|known| known == name) {
            Some(at) => at,
            None if self.names.len() == METRICS_MAX || name.len() > NAME_BYTES_MAX => {
                self.names_left_out += 1;
                return None;
            }
            None => {
                self.names.push(name.to_string());
                self.columns.push(vec![EMPTY; self.buckets.len()]);
                self.names.len() - 1
            }
        };
        Some(&mut self.columns[at])
    }

    /// Removes `step` and later ones. A bucket that also holds earlier ones is removed whole: sums cannot be split.
    fn rewind(&mut self, step: u32) {
        let kept = self.buckets.partition_point(|bucket| bucket.last < step);
        self.buckets.truncate(kept);
        self.columns.iter_mut().for_each(|column| column.truncate(kept));
        self.epoch += 1;
    }

    fn halve(&mut self) {
        let join = |pair: &[Bucket]| Bucket {
            last: pair[pair.len() - 1].last,
            count: pair.iter().map(|bucket| bucket.count).sum(),
            ..pair[0]
        };
        self.buckets = self.buckets.chunks(2).map(join).collect();
        for column in &mut self.columns {
            let join = |pair: &[Cell]| {
                let mut all = pair[0];
                pair[1..].iter().for_each(|&cell| all.join(cell));
                all
            };
            *column = column.chunks(2).map(join).collect();
        }
        self.width *= 2;
        self.epoch += 1;
    }

    /// Returns the last value of a metric: the mean of the last bucket that has one.
    pub fn last(&self, name: &str) -> Option<f64> {
        let column = &self.columns[self.names.iter().position(|known| known == name)?];
        column.iter().rev().find(|cell| cell.count > 0).map(Cell::mean)
    }

    /// Returns the least and the greatest value of a metric in one step.
    pub fn extremes(&self, name: &str) -> Option<(f64, f64)> {
        let column = &self.columns[self.names.iter().position(|known| known == name)?];
        let all = column.iter().fold(EMPTY, |mut all, &cell| {
            all.join(cell);
            all
        });
        (all.count > 0).then(|| (f64::from(all.min), f64::from(all.max)))
    }

    /// Returns the buckets from index `from` on as JSON; the page replaces its own from there.
    pub fn json(&self, from: usize) -> String {
        let from = from.min(self.buckets.len());
        let mut out =
            format!("{{\"epoch\":{},\"width\":{},\"from\":{from},\"first\":", self.epoch, self.width);
        let buckets = &self.buckets[from..];
        array(&mut out, buckets.iter().map(|bucket| Some(f64::from(bucket.first))));
        out.push_str(",\"last\":");
        array(&mut out, buckets.iter().map(|bucket| Some(f64::from(bucket.last))));
        out.push_str(",\"count\":");
        array(&mut out, buckets.iter().map(|bucket| Some(f64::from(bucket.count))));
        out.push_str(",\"metrics\":{");
        for (i, (name, column)) in self.names.iter().zip(&self.columns).enumerate() {
            let cells = &column[from..];
            let value =
                |pick: fn(&Cell) -> f64| cells.iter().map(move |cell| (cell.count > 0).then(|| pick(cell)));
            let name = serde_json::to_string(name).expect("a name is text");
            let _ = write!(out, "{}{name}:{{\"mean\":", if i > 0 { "," } else { "" });
            array(&mut out, value(Cell::mean));
            if self.width > 1 {
                out.push_str(",\"min\":");
                array(&mut out, value(|cell| f64::from(cell.min)));
                out.push_str(",\"max\":");
                array(&mut out, value(|cell| f64::from(cell.max)));
            }
            out.push('}');
        }
        out.push_str("}}");
        out
    }
}

fn array(out: &mut String, values: impl Iterator<Item = Option<f64>>) {
    out.push('[');
    for (i, value) in values.enumerate() {
        if i > 0 {
            out.push(',');
        }
        match value.filter(|value| value.is_finite()) {
            None => out.push_str("null"),
            Some(value) if value.fract() == 0.0 && value.abs() < 9e15 => {
                let _ = write!(out, "{}", value as i64);
            }
            // Seven digits draw any curve.
            Some(value) => {
                let short = value as f32;
                *out += &if short.is_finite() { format!("{short:?}") } else { format!("{value:?}") };
            }
        }
    }
    out.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of_steps(steps: impl Iterator<Item = u32>) -> Series {
        let mut series = Series::new(0);
        for step in steps {
            series.add(
                step,
                u64::from(step) * 100,
                [("reward", f64::from(step)), ("nan", f64::NAN)].into_iter(),
            );
        }
        series
    }

    fn parsed(series: &Series, from: usize) -> Value {
        serde_json::from_str(&series.json(from)).unwrap()
    }

    #[test]
    fn few_steps_are_kept_one_by_one() {
        let series = of_steps(1..=3);
        let got = parsed(&series, 1);
        assert_eq!(got["first"], json!([2, 3]));
        assert_eq!(got["metrics"], json!({"reward": {"mean": [2, 3]}}));
        assert_eq!(series.last("reward"), Some(3.0));
        assert_eq!(series.last("none"), None);
        assert_eq!((series.extremes("reward"), series.extremes("none")), (Some((1.0, 3.0)), None));
    }

    #[test]
    fn a_series_of_fewer_buckets_keeps_to_them_and_to_its_ends() {
        let mut series = Series::with_buckets(0, 8);
        (1..=100).for_each(|step| series.add(step, 0, [("reward", f64::from(step))].into_iter()));
        assert!(series.len() <= 8 && series.len() > 4, "{}", series.len());
        assert_eq!((series.last_step(), series.extremes("reward")), (Some(100), Some((1.0, 100.0))));
    }

    #[test]
    fn a_hundred_thousand_steps_keep_their_mean_extremes_and_ends() {
        let series = of_steps(1..=100_000);
        assert!(series.len() <= BUCKETS_MAX && series.len() > BUCKETS_MAX / 2, "{}", series.len());
        assert_eq!(series.width(), 64);
        let got = parsed(&series, 0);
        let numbers = |value: &Value| -> Vec<f64> {
            value.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
        };
        let (mean, min, max) = (
            numbers(&got["metrics"]["reward"]["mean"]),
            numbers(&got["metrics"]["reward"]["min"]),
            numbers(&got["metrics"]["reward"]["max"]),
        );
        assert_eq!((min[0], mean[0], max[0]), (1.0, 32.5, 64.0));
        assert_eq!(max[max.len() - 1], 100_000.0);
        assert_eq!(numbers(&got["count"]).iter().sum::<f64>(), 100_000.0);
        assert!(min.iter().zip(&max).zip(&mean).all(|((min, max), mean)| min <= mean && mean <= max));
        // Where single steps can be read again.
        assert_eq!(series.offset_of(1), 100);
        assert_eq!(series.offset_of(129), 12_900);
        assert_eq!(series.offset_of(150), 12_900);
    }

    #[test]
    fn a_run_that_went_back_takes_back_its_curve() {
        let mut series = of_steps(1..=10);
        let epoch = series.epoch;
        series.add(6, 0, [("reward", -6.0)].into_iter());
        assert!(series.epoch > epoch);
        assert_eq!(parsed(&series, 0)["metrics"]["reward"]["mean"], json!([1, 2, 3, 4, 5, -6]));
        assert_eq!(series.last_step(), Some(6));
    }

    #[test]
    fn metrics_come_late_are_missing_and_are_bounded() {
        let mut series = of_steps(1..=2);
        series.add(3, 0, [("late", 7.5)].into_iter());
        let got = parsed(&series, 0);
        assert_eq!(got["metrics"]["late"]["mean"], json!([null, null, 7.5]));
        assert_eq!(got["metrics"]["reward"]["mean"], json!([1, 2, null]));
        let names: Vec<String> = (0..500).map(|i| format!("rewards/{i}")).collect();
        series.add(4, 0, names.iter().map(|name| (name.as_str(), 1e300)));
        assert_eq!(series.names.len(), METRICS_MAX);
        assert!(series.names_left_out > 400);
        assert!(serde_json::from_str::<Value>(&series.json(0)).is_ok());
    }
}
