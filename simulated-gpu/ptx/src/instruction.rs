//! Instructions as they are executed.

/// The place of a register.
pub(crate) type Register = usize;

/// What a thread knows of itself without being told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Special {
    Thread,
    Threads,
    Block,
    Blocks,
    Lane,
    Multiprocessor,
}

/// What an instruction reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operand {
    Register(Register),
    Value(u64),
    Special(Special),
}

/// How wide an instruction's values are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Width {
    Word,
    Long,
}

impl Width {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::Word => 4,
            Self::Long => 8,
        }
    }

    pub(crate) fn cut(self, value: u64) -> u64 {
        match self {
            Self::Word => value & u64::from(u32::MAX),
            Self::Long => value,
        }
    }
}

/// Of two operands one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pair {
    Add,
    Subtract,
    Multiply,
    ShiftRight,
    And,
    Or,
    Xor,
    NotEqual,
    Equal,
    Less,
    GreaterOrEqual,
}

/// A value as another type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conversion {
    WordToLong,
    SingleToDouble,
    /// Rounded to the nearest integer, of two the even one.
    SingleToInteger,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    Move(Operand),
    /// The parameter with this number.
    Parameter(usize),
    Pair(Pair, Width, [Operand; 2]),
    /// The low half of a product, and a sum.
    MultiplyAdd(Width, [Operand; 3]),
    /// A product of words, as wide as two.
    MultiplyWide([Operand; 2]),
    FusedSingle([Operand; 3]),
    FusedDouble([Operand; 3]),
    Convert(Conversion, Operand),
    /// The first operand where the last one, a predicate, holds, else the second.
    Select([Operand; 3]),
    Load(Width, Operand, i64),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    Set(Register, Action),
    Store(Width, Operand, i64, Operand),
    /// D, A, B and C of mma.m16n8k16 with f16 factors and f32 sums.
    Product {
        sums: [Register; 4],
        left: [Register; 4],
        right: [Register; 2],
        addends: [Register; 4],
    },
    /// To this step; if there is a predicate, where that is as said.
    Branch(usize, Option<(Register, bool)>),
    Return,
}
