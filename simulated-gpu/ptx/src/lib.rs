//! Executes a kernel of a PTX text: a warp of 32 threads after the other, each instruction for all of its lanes. Of PTX there is
//! what straight computing takes: integers, single and double precision, products of matrices, global memory, and branches
//! that a whole warp takes. What is not known is refused when the text is read, never guessed.
//!
//! Source of every meaning: PTX ISA 8.7, "Instruction Set" and "Matrix Fragments for mma.m16n8k16 with floating point type".

mod execution;
mod instruction;
mod product;
mod reading;

pub use execution::{Fault, Hardware, Memory};
pub use reading::Unreadable;

use instruction::Step;

/// Threads of a warp.
pub const LANES: usize = 32;

/// A kernel that can be executed.
#[derive(Debug, Clone)]
pub struct Program {
    /// How wide each parameter is, in bytes: 4 or 8.
    parameters: Vec<usize>,
    registers: usize,
    steps: Vec<Step>,
}

/// How it is launched, in one dimension.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Blocks of the grid.
    pub blocks: u32,
    /// Threads of each block, a multiple of [`LANES`].
    pub threads: u32,
    /// The parameters' values.
    pub parameters: Vec<u64>,
}

impl Program {
    /// The kernel with this name in a text.
    ///
    /// # Errors
    /// There is none, or it has something that is not known here.
    pub fn read(text: &str, kernel: &str) -> Result<Self, Unreadable> {
        reading::read(text, kernel)
    }

    /// How wide each of its parameters is, in bytes.
    #[must_use]
    pub fn parameters(&self) -> &[usize] {
        &self.parameters
    }

    /// Executes it for every block.
    ///
    /// # Errors
    /// What it does that cannot be done.
    pub fn run(&self, launch: &Launch, hardware: Hardware, memory: &mut impl Memory) -> Result<(), Fault> {
        execution::run(self, launch, hardware, memory)
    }
}
