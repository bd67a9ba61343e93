//! Text that is drawn again and again: in place on a terminal, as plain blocks elsewhere.

use std::io::{IsTerminal, Write};

/// Columns and rows of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Size {
    columns: usize,
    rows: usize,
}

impl Size {
    /// That of stdout now; none if it is no terminal, or one that does not say.
    fn of_stdout() -> Option<Self> {
        let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
        let (columns, rows) = (usize::from(size.ws_col), usize::from(size.ws_row));
        (columns > 0 && rows > 1).then_some(Self { columns, rows })
    }

    /// As much of `block` as can be drawn again in place: a line that wraps, or a block that scrolls, would leave its upper
    /// part standing.
    fn cut(self, block: &str) -> String {
        let count = block.lines().count();
        // The last row is the cursor's.
        let (room, mut cut) = (self.rows - 1, String::new());
        let shown = if count > room { room - 1 } else { count };
        for line in block.lines().take(shown) {
            cut.extend(line.chars().take(self.columns));
            cut.push('\n');
        }
        if shown < count {
            cut += &format!("... {} more", count - shown).chars().take(self.columns).collect::<String>();
            cut.push('\n');
        }
        cut
    }
}

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

    /// Draws `block`, whose lines all end with a newline; in place, as much of it as the terminal shows.
    ///
    /// # Errors
    /// Whatever `output` says.
    pub fn draw(&mut self, output: &mut impl Write, block: &str) -> std::io::Result<()> {
        // Asked each time: windows change.
        match Size::of_stdout().filter(|_| self.in_place) {
            Some(size) => self.draw_whole(output, &size.cut(block)),
            None => self.draw_whole(output, block),
        }
    }

    fn draw_whole(&mut self, output: &mut impl Write, block: &str) -> std::io::Result<()> {
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
            live.draw_whole(&mut output, block).unwrap();
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

    #[test]
    fn what_a_terminal_cannot_show_is_left_out() {
        let size = Size { columns: 5, rows: 4 };
        assert_eq!(size.cut("abc\ndefghi\nj\n"), "abc\ndefgh\nj\n");
        assert_eq!(size.cut("a\nb\nc\nd\n"), "a\nb\n... 2\n");
        assert_eq!(Size { columns: 80, rows: 2 }.cut("a\nb\n"), "... 2 more\n");
        assert_eq!(size.cut("\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\n"), "\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\n");
    }
}
