//! Text that is drawn again and again: in place on a terminal, as plain blocks elsewhere.

use std::io::{IsTerminal, Write};

/// A block of lines at the bottom of the output.
#[derive(Debug)]
pub struct LiveBlock {
    in_place: bool,
    lines_drawn: usize,
}

impl LiveBlock {
    /// Redraws in place when stdout is a terminal.
    pub fn on_stdout() -> Self {
        Self::new(std::io::stdout().is_terminal())
    }

    /// Redraws in place or prints block after block.
    pub fn new(in_place: bool) -> Self {
        Self { in_place, lines_drawn: 0 }
    }

    /// Draws `block`, whose lines all end with a newline.
    ///
    /// # Errors
    /// Whatever `output` says.
    pub fn draw(&mut self, output: &mut impl Write, block: &str) -> std::io::Result<()> {
        if self.in_place && self.lines_drawn > 0 {
            // Up to the first line of the last block, then clear to the end: no flicker of the whole screen.
            write!(output, "\x1b[{}A\x1b[J", self.lines_drawn)?;
        }
        output.write_all(block.as_bytes())?;
        if !self.in_place {
            output.write_all(b"\n")?;
        }
        self.lines_drawn = block.lines().count();
        output.flush()
    }

    /// Leaves what is drawn where it is; the next block starts below.
    pub fn leave(&mut self) {
        self.lines_drawn = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(in_place: bool, blocks: &[&str]) -> String {
        let (mut output, mut live) = (Vec::new(), LiveBlock::new(in_place));
        for block in blocks {
            live.draw(&mut output, block).unwrap();
        }
        String::from_utf8(output).unwrap()
    }

    #[test]
    fn a_terminal_is_redrawn_in_place() {
        assert_eq!(drawn(true, &["a\nb\n", "c\n"]), "a\nb\n\x1b[2A\x1b[Jc\n");
    }

    #[test]
    fn elsewhere_no_control_character_is_printed() {
        assert_eq!(drawn(false, &["a\nb\n", "c\n"]), "a\nb\n\nc\n\n");
    }
}
