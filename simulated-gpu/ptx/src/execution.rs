//! Executes what was read.

use crate::instruction::{Action, Conversion, Operand, Pair, Register, Special, Step, Width};
use crate::{LANES, Launch, Program, product};

/// Device memory.
pub trait Memory {
    /// What is at an address, 4 or 8 bytes; none where nothing is.
    fn load(&mut self, address: u64, bytes: usize) -> Option<u64>;
    /// Puts 4 or 8 bytes there; none where nothing is.
    fn store(&mut self, address: u64, bytes: usize, value: u64) -> Option<()>;
}

/// What it runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hardware {
    /// Over which blocks are spread in turn.
    pub multiprocessors: u32,
    /// One that errs in the last place of some sums of single precision, and by one in some of products of matrices.
    pub wrong: Option<u32>,
}

/// What a kernel cannot do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Blocks that are no whole warps, or another number of parameters.
    Launch,
    /// Memory that is not there, or an address that no value of this width may have.
    Address(u64),
    /// A branch that some lanes take and others do not.
    Divergence,
}

/// The lane that errs on a multiprocessor that does.
const WRONG_LANE: usize = 5;
/// Every so-manieth sum errs there.
const WRONG_EVERY: u64 = 7;

type Lanes = [u64; LANES];

struct Warp<'a> {
    launch: &'a Launch,
    registers: Vec<Lanes>,
    first_thread: u32,
    block: u32,
    multiprocessor: u32,
    errs: bool,
    sums: u64,
}

pub(crate) fn run(
    program: &Program,
    launch: &Launch,
    hardware: Hardware,
    memory: &mut impl Memory,
) -> Result<(), Fault> {
    let is_whole = launch.threads > 0 && launch.threads.is_multiple_of(LANES as u32);
    if !is_whole || launch.parameters.len() != program.parameters.len() {
        return Err(Fault::Launch);
    }
    for block in 0..launch.blocks {
        let multiprocessor = block % hardware.multiprocessors.max(1);
        for first_thread in (0..launch.threads).step_by(LANES) {
            let errs = hardware.wrong == Some(multiprocessor);
            let registers = vec![[0; LANES]; program.registers];
            let mut warp = Warp { launch, registers, first_thread, block, multiprocessor, errs, sums: 0 };
            warp.run(&program.steps, memory)?;
        }
    }
    Ok(())
}

impl Warp<'_> {
    fn run(&mut self, steps: &[Step], memory: &mut impl Memory) -> Result<(), Fault> {
        let mut at = 0;
        while let Some(step) = steps.get(at) {
            at += 1;
            match step {
                Step::Set(to, action) => self.registers[*to] = self.result(action, memory)?,
                Step::Store(width, base, offset, value) => {
                    let (base, value) = (self.read(*base), self.read(*value));
                    for lane in 0..LANES {
                        let address = place(base[lane], *offset, *width)?;
                        let stored = memory.store(address, width.bytes(), width.cut(value[lane]));
                        stored.ok_or(Fault::Address(address))?;
                    }
                }
                Step::Product { sums, left, right, addends } => self.multiply(*sums, *left, *right, *addends),
                Step::Branch(target, None) => at = *target,
                Step::Branch(target, Some((predicate, wanted))) => {
                    let taken = self.registers[*predicate].map(|holds| (holds != 0) == *wanted);
                    if taken.iter().any(|its| *its != taken[0]) {
                        return Err(Fault::Divergence);
                    }
                    at = if taken[0] { *target } else { at };
                }
                Step::Return => break,
            }
        }
        Ok(())
    }

    fn read(&self, operand: Operand) -> Lanes {
        match operand {
            Operand::Register(register) => self.registers[register],
            Operand::Value(value) => [value; LANES],
            Operand::Special(Special::Thread) => std::array::from_fn(|lane| u64::from(self.first_thread) + lane as u64),
            Operand::Special(Special::Lane) => std::array::from_fn(|lane| lane as u64),
            Operand::Special(Special::Threads) => [self.launch.threads.into(); LANES],
            Operand::Special(Special::Block) => [self.block.into(); LANES],
            Operand::Special(Special::Blocks) => [self.launch.blocks.into(); LANES],
            Operand::Special(Special::Multiprocessor) => [self.multiprocessor.into(); LANES],
        }
    }

    fn result(&mut self, action: &Action, memory: &mut impl Memory) -> Result<Lanes, Fault> {
        Ok(match action {
            Action::Move(from) => self.read(*from),
            Action::Parameter(number) => [self.launch.parameters[*number]; LANES],
            Action::Pair(pair, width, operands) => {
                let [a, b] = operands.map(|operand| self.read(operand));
                std::array::from_fn(|lane| of_pair(*pair, *width, a[lane], b[lane]))
            }
            Action::MultiplyAdd(width, operands) => {
                let [a, b, c] = operands.map(|operand| self.read(operand));
                std::array::from_fn(|lane| width.cut(a[lane].wrapping_mul(b[lane]).wrapping_add(c[lane])))
            }
            Action::MultiplyWide(operands) => {
                let [a, b] = operands.map(|operand| self.read(operand));
                std::array::from_fn(|lane| Width::Word.cut(a[lane]) * Width::Word.cut(b[lane]))
            }
            Action::FusedSingle(operands) => self.fused_single(*operands),
            Action::FusedDouble(operands) => {
                let [a, b, c] = operands.map(|operand| self.read(operand).map(f64::from_bits));
                std::array::from_fn(|lane| a[lane].mul_add(b[lane], c[lane]).to_bits())
            }
            Action::Convert(conversion, from) => self.read(*from).map(|value| converted(*conversion, value)),
            Action::Select(operands) => {
                let [a, b, holds] = operands.map(|operand| self.read(operand));
                std::array::from_fn(|lane| if holds[lane] != 0 { a[lane] } else { b[lane] })
            }
            Action::Load(width, base, offset) => {
                let mut loaded = self.read(*base);
                for value in &mut loaded {
                    let address = place(*value, *offset, *width)?;
                    *value = memory.load(address, width.bytes()).ok_or(Fault::Address(address))?;
                }
                loaded
            }
        })
    }

    /// Whether the next sum is one that errs.
    fn is_wrong(&mut self) -> bool {
        self.sums += 1;
        self.errs && self.sums.is_multiple_of(WRONG_EVERY)
    }

    fn fused_single(&mut self, operands: [Operand; 3]) -> Lanes {
        let [a, b, c] = operands.map(|operand| self.read(operand).map(|bits| f32::from_bits(bits as u32)));
        let mut sums: Lanes = std::array::from_fn(|lane| a[lane].mul_add(b[lane], c[lane]).to_bits().into());
        sums[WRONG_LANE] ^= u64::from(self.is_wrong());
        sums
    }

    fn multiply(&mut self, to: [Register; 4], left: [Register; 4], right: [Register; 2], addends: [Register; 4]) {
        let of = |register: Register| self.registers[register];
        let mut sums = product::product(left.map(of), right.map(of), addends.map(of));
        if self.is_wrong() {
            let sum = f32::from_bits(sums[0][WRONG_LANE] as u32) + 1.0;
            sums[0][WRONG_LANE] = sum.to_bits().into();
        }
        for (register, sums) in to.into_iter().zip(sums) {
            self.registers[register] = sums;
        }
    }
}

/// An address, which is a multiple of the value's width.
fn place(base: u64, offset: i64, width: Width) -> Result<u64, Fault> {
    let address = base.wrapping_add_signed(offset);
    if address.is_multiple_of(width.bytes() as u64) { Ok(address) } else { Err(Fault::Address(address)) }
}

fn of_pair(pair: Pair, width: Width, a: u64, b: u64) -> u64 {
    let (a, b) = (width.cut(a), width.cut(b));
    let value = match pair {
        Pair::Add => a.wrapping_add(b),
        Pair::Subtract => a.wrapping_sub(b),
        Pair::Multiply => a.wrapping_mul(b),
        // By as many bits as there are or more nothing is left.
        Pair::ShiftRight => u32::try_from(b).ok().and_then(|bits| a.checked_shr(bits)).unwrap_or(0),
        Pair::And => a & b,
        Pair::Or => a | b,
        Pair::Xor => a ^ b,
        Pair::NotEqual => u64::from(a != b),
        Pair::Equal => u64::from(a == b),
        Pair::Less => u64::from(a < b),
        Pair::GreaterOrEqual => u64::from(a >= b),
    };
    width.cut(value)
}

fn converted(conversion: Conversion, value: u64) -> u64 {
    let single = f32::from_bits(value as u32);
    match conversion {
        Conversion::WordToLong => Width::Word.cut(value),
        Conversion::SingleToDouble => f64::from(single).to_bits(),
        Conversion::SingleToInteger => u64::from(single.round_ties_even() as i32 as u32),
    }
}
