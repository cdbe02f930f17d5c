//! Gymnasium's random generator: numpy's `SeedSequence` and `PCG64`, so a seed begins the same episode.
//!
//! Sources: M. E. O'Neill, "PCG: A family of simple fast space-efficient statistically good algorithms" (XSL-RR
//! 128/64), and the seed sequence of the same author; constants are numpy's.

const INIT_A: u32 = 0x43b0_d7e5;
const MULTIPLIER_A: u32 = 0x931e_8875;
const INIT_B: u32 = 0x8b51_f9dd;
const MULTIPLIER_B: u32 = 0x58f3_8ded;
const MIX_LEFT: u32 = 0xca01_f9dd;
const MIX_RIGHT: u32 = 0x4973_f715;
const PCG_MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;

/// numpy's `default_rng(seed)`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumpyRandom {
    state: u128,
    increment: u128,
}

impl NumpyRandom {
    /// Makes the generator of a seed.
    pub fn new(seed: u64) -> NumpyRandom {
        let words = seed_words(seed);
        let wide =
            |at: usize| (0..4).fold(0u128, |value, i| value | u128::from(words[at + i]) << (32 * ORDER[i]));
        let mut random = NumpyRandom { state: 0, increment: wide(4) << 1 | 1 };
        random.advance();
        random.state = random.state.wrapping_add(wide(0));
        random.advance();
        random
    }

    /// Returns 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.advance();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    /// Returns a uniform number in [0, 1), a multiple of 2^-53.
    pub fn random(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }

    /// Returns a uniform number in [low, high).
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.random()
    }

    fn advance(&mut self) {
        self.state = self.state.wrapping_mul(PCG_MULTIPLIER).wrapping_add(self.increment);
    }
}

/// Order of four 32-bit words in 128 bits: each u64 is little-endian, and the first u64 is the upper half.
const ORDER: [u32; 4] = [2, 3, 0, 1];

/// Returns `SeedSequence(seed).generate_state(4, uint64)` as 32-bit words.
fn seed_words(seed: u64) -> [u32; 8] {
    let mut constant = INIT_A;
    let mut hash = |value: u32| {
        let value = value ^ constant;
        constant = constant.wrapping_mul(MULTIPLIER_A);
        let value = value.wrapping_mul(constant);
        value ^ value >> 16
    };
    let mut pool = [hash(seed as u32), hash((seed >> 32) as u32), hash(0), hash(0)];
    for source in 0..4 {
        for target in (0..4).filter(|&target| target != source) {
            let mixed =
                MIX_LEFT.wrapping_mul(pool[target]).wrapping_sub(MIX_RIGHT.wrapping_mul(hash(pool[source])));
            pool[target] = mixed ^ mixed >> 16;
        }
    }
    let mut constant = INIT_B;
    std::array::from_fn(|i| {
        let value = pool[i % 4] ^ constant;
        constant = constant.wrapping_mul(MULTIPLIER_B);
        let value = value.wrapping_mul(constant);
        value ^ value >> 16
    })
}

#[cfg(test)]
impl NumpyRandom {
    /// Returns state and increment, as numpy shows them.
    pub fn parts(&self) -> (u128, u128) {
        (self.state, self.increment)
    }

    /// Returns the words of the seed sequence as four u64.
    pub fn seed_state(seed: u64) -> [u64; 4] {
        let words = seed_words(seed);
        std::array::from_fn(|i| u64::from(words[2 * i + 1]) << 32 | u64::from(words[2 * i]))
    }
}
