//! A seccomp filter, built from a table of calls: what the kernel does when a worker makes one.
//!
//! Calls that the table does not name are allowed. The kernel's filter machine only jumps forward, so filters end.

use crate::calls::NO_CALL;

/// One instruction of the kernel's filter machine.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    code: u16,
    jump_true: u8,
    jump_false: u8,
    operand: u32,
}

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_AT_LEAST: u16 = 0x35;
const JUMP_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

/// Offsets of the call number, the architecture, and the low word of the first argument.
const NUMBER: u32 = 0;
const MACHINE: u32 = 4;
const ARGUMENT_0: u32 = 16;
/// Distance between two arguments.
const ARGUMENT_BYTES: u32 = 8;

const ALLOW: u32 = 0x7fff_0000;
const KILL_PROCESS: u32 = 0x8000_0000;
const ERROR: u32 = 0x0005_0000;
const ASK: u32 = 0x7fc0_0000;
const ENOSYS: u16 = 38;
/// Numbers from here on are the x32 calls of x86-64, which would bypass the checked numbers.
const X32_CALLS: u32 = 0x4000_0000;

/// Says what happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allow,
    /// The call fails with this error number.
    Fail(u16),
    /// The keeper decides.
    Ask,
}

/// A condition on the low 32 bits of an argument, and the verdict if it holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Check {
    pub argument: u32,
    pub condition: Condition,
    pub verdict: Verdict,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Condition {
    Is(u32),
    /// The bits under a mask have this value.
    Masked(u32, u32),
    AnyBit(u32),
    AtLeast(u32),
}

/// A filter under construction.
#[derive(Debug)]
pub(crate) struct Filter {
    instructions: Vec<Instruction>,
}

impl Verdict {
    fn word(self) -> u32 {
        match self {
            Verdict::Allow => ALLOW,
            Verdict::Fail(error) => ERROR | u32::from(error),
            Verdict::Ask => ASK,
        }
    }
}

impl Filter {
    /// Begins a filter for one architecture. A call of another architecture kills the process: its numbers differ.
    pub(crate) fn new(machine: u32) -> Filter {
        let instructions = vec![
            load(MACHINE),
            jump(JUMP_EQUAL, machine, 1, 0),
            give(KILL_PROCESS),
            load(NUMBER),
            jump(JUMP_AT_LEAST, X32_CALLS, 0, 1),
            give(Verdict::Fail(ENOSYS).word()),
        ];
        Filter { instructions }
    }

    /// Sets the verdict on call `number`: that of the first check that holds, else `otherwise`.
    pub(crate) fn call(&mut self, number: u32, checks: &[Check], otherwise: Verdict) {
        if number == NO_CALL {
            return;
        }
        let mut body = Vec::with_capacity(checks.len() * 4 + 1);
        for check in checks {
            body.push(load(ARGUMENT_0 + ARGUMENT_BYTES * check.argument));
            match check.condition {
                Condition::Is(value) => body.push(jump(JUMP_EQUAL, value, 0, 1)),
                Condition::Masked(mask, value) => {
                    body.push(Instruction { code: AND, jump_true: 0, jump_false: 0, operand: mask });
                    body.push(jump(JUMP_EQUAL, value, 0, 1));
                }
                Condition::AnyBit(mask) => body.push(jump(JUMP_ANY_BIT, mask, 0, 1)),
                Condition::AtLeast(value) => body.push(jump(JUMP_AT_LEAST, value, 0, 1)),
            }
            body.push(give(check.verdict.word()));
        }
        body.push(give(otherwise.word()));
        let length = u8::try_from(body.len()).expect("a call has a few checks of four instructions each");
        self.instructions.push(jump(JUMP_EQUAL, number, 0, length));
        self.instructions.extend(body);
    }

    /// Sets the verdict on each of `numbers`, whatever its arguments.
    pub(crate) fn calls(&mut self, numbers: &[u32], verdict: Verdict) {
        for &number in numbers {
            self.call(number, &[], verdict);
        }
    }

    /// Returns the instructions; the last one allows calls that the table does not name.
    pub(crate) fn done(mut self) -> Vec<Instruction> {
        self.instructions.push(give(ALLOW));
        self.instructions
    }
}

fn load(operand: u32) -> Instruction {
    Instruction { code: LOAD, jump_true: 0, jump_false: 0, operand }
}

fn give(operand: u32) -> Instruction {
    Instruction { code: RETURN, jump_true: 0, jump_false: 0, operand }
}

/// Makes a jump, counted in instructions from the next one.
fn jump(code: u16, operand: u32, jump_true: u8, jump_false: u8) -> Instruction {
    Instruction { code, jump_true, jump_false, operand }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Runs a filter as the kernel does.
    pub(crate) fn verdict(filter: &[Instruction], machine: u32, number: u32, arguments: &[u64]) -> u32 {
        let word = |at: u32| match at {
            NUMBER => number,
            MACHINE => machine,
            at => arguments.get(((at - ARGUMENT_0) / ARGUMENT_BYTES) as usize).copied().unwrap_or(0) as u32,
        };
        let (mut held, mut at) = (0, 0);
        loop {
            let Instruction { code, jump_true, jump_false, operand } = filter[at];
            let holds = match code {
                RETURN => return operand,
                LOAD => {
                    held = word(operand);
                    at += 1;
                    continue;
                }
                AND => {
                    held &= operand;
                    at += 1;
                    continue;
                }
                JUMP_EQUAL => held == operand,
                JUMP_AT_LEAST => held >= operand,
                JUMP_ANY_BIT => held & operand != 0,
                code => panic!("instruction {code:#x}"),
            };
            at += 1 + usize::from(if holds { jump_true } else { jump_false });
        }
    }

    #[test]
    fn the_first_check_that_holds_decides() {
        let (here, there) = (0xc000_003e, 0x4000_0003);
        let mut filter = Filter::new(here);
        let check = |argument, condition, verdict| Check { argument, condition, verdict };
        let checks = [
            check(0, Condition::Is(7), Verdict::Allow),
            check(1, Condition::Masked(0xff00, 0x4600), Verdict::Fail(1)),
            check(2, Condition::AnyBit(0b110), Verdict::Fail(13)),
            check(0, Condition::AtLeast(0x8000_0000), Verdict::Fail(3)),
        ];
        filter.call(62, &checks, Verdict::Ask);
        filter.calls(&[16, NO_CALL, 41], Verdict::Fail(38));
        let filter = filter.done();
        for (number, arguments, expect) in [
            (62, [7u64, 0x4612, 2], ALLOW),
            (62, [8, 0x4612, 2], ERROR | 1),
            // The kernel passes whole registers; an ioctl has 32 bits.
            (62, [8, 0xffff_0000_0000_4612, 2], ERROR | 1),
            (62, [8, 0x4712, 2], ERROR | 13),
            (62, [-1i64 as u64, 0, 0], ERROR | 3),
            (62, [8, 0, 1], ASK),
            (16, [0, 0, 0], ERROR | 38),
            (41, [0, 0, 0], ERROR | 38),
            (1, [0, 0, 0], ALLOW),
            (X32_CALLS | 62, [7, 0, 0], ERROR | 38),
        ] {
            assert_eq!(verdict(&filter, here, number, &arguments), expect, "{number} {arguments:x?}");
        }
        assert_eq!(verdict(&filter, there, 1, &[]), KILL_PROCESS);
    }
}
