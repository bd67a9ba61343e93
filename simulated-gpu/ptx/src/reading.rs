//! Reads a kernel out of a PTX text.

use crate::Program;
use crate::instruction::{Action, Conversion, Operand, Pair, Register, Special, Step, Width};
use std::collections::HashMap;
use std::fmt;

/// What of a text cannot be executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable(String);

impl fmt::Display for Unreadable {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} is not known here", self.0)
    }
}

impl std::error::Error for Unreadable {}

fn unknown<T>(what: &str) -> Result<T, Unreadable> {
    Err(Unreadable(format!("{what:?}")))
}

/// A kernel's parameters, registers and labels.
#[derive(Default)]
struct Names {
    parameters: Vec<String>,
    registers: HashMap<String, Register>,
    labels: HashMap<String, usize>,
}

pub(crate) fn read(text: &str, kernel: &str) -> Result<Program, Unreadable> {
    let text: String =
        text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join(" ");
    let head =
        |rest: &&str| rest.trim_start().strip_prefix(kernel).is_some_and(|rest| rest.trim_start().starts_with('('));
    let found = text.split(".entry").skip(1).find(head);
    let Some((parameters, body)) = found.and_then(|rest| rest.split_once('(')?.1.split_once(')')) else {
        return unknown(kernel);
    };
    let mut names = Names::default();
    let mut widths = Vec::new();
    for parameter in parameters.split(',').filter(|parameter| !parameter.trim().is_empty()) {
        match parameter.split_whitespace().collect::<Vec<_>>()[..] {
            [".param", kind, name] => {
                widths.push(width(kind.trim_start_matches('.'))?.bytes());
                names.parameters.push(name.to_owned());
            }
            _ => return unknown(parameter),
        }
    }
    let body = inside(body).ok_or_else(|| Unreadable(format!("{kernel:?}")))?;
    let lines = lines(body, &mut names)?;
    let steps = lines.iter().map(|line| step(line, &names)).collect::<Result<Vec<_>, _>>()?;
    Ok(Program { parameters: widths, registers: names.registers.len(), steps })
}

/// What is in the first braces of a text, which may have further ones in them.
fn inside(text: &str) -> Option<&str> {
    let begin = text.find('{')? + 1;
    let mut depth = 1;
    for (place, letter) in text[begin..].char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&text[begin..begin + place]);
        }
    }
    None
}

/// The instructions of a body, whose registers and labels are noted.
fn lines(body: &str, names: &mut Names) -> Result<Vec<String>, Unreadable> {
    let mut lines = Vec::new();
    for line in body.split(';') {
        let mut line = line.trim();
        while let Some((label, rest)) = line.split_once(':').filter(|(label, _)| !label.contains([' ', '.'])) {
            names.labels.insert(label.to_owned(), lines.len());
            line = rest.trim();
        }
        match line.strip_prefix(".reg") {
            Some(declared) => {
                let Some((_, registers)) = declared.trim().split_once(' ') else { return unknown(line) };
                for register in registers.split(',') {
                    let next = names.registers.len();
                    names.registers.entry(register.trim().to_owned()).or_insert(next);
                }
            }
            None if line.is_empty() => {}
            None => lines.push(line.to_owned()),
        }
    }
    Ok(lines)
}

fn width(kind: &str) -> Result<Width, Unreadable> {
    match kind {
        "u32" | "b32" | "f32" => Ok(Width::Word),
        "u64" | "b64" | "f64" => Ok(Width::Long),
        _ => unknown(kind),
    }
}

impl Names {
    fn register(&self, text: &str) -> Result<Register, Unreadable> {
        self.registers.get(text).copied().ok_or_else(|| Unreadable(format!("{text:?}")))
    }

    fn operand(&self, text: &str) -> Result<Operand, Unreadable> {
        if let Some(register) = self.registers.get(text) {
            return Ok(Operand::Register(*register));
        }
        let special = match text {
            "%tid.x" => Special::Thread,
            "%ntid.x" => Special::Threads,
            "%ctaid.x" => Special::Block,
            "%nctaid.x" => Special::Blocks,
            "%laneid" => Special::Lane,
            "%smid" => Special::Multiprocessor,
            _ => return value(text).map(Operand::Value),
        };
        Ok(Operand::Special(special))
    }

    fn operands<const N: usize>(&self, texts: &[&str]) -> Result<[Operand; N], Unreadable> {
        let operands = texts.iter().map(|text| self.operand(text)).collect::<Result<Vec<_>, _>>()?;
        operands.try_into().map_err(|_| Unreadable(format!("{:?}", texts.join(", "))))
    }

    fn registers_of<const N: usize>(&self, text: &str) -> Result<[Register; N], Unreadable> {
        let names = text.trim_start_matches('{').trim_end_matches('}').split(',').map(str::trim);
        let registers = names.map(|name| self.register(name)).collect::<Result<Vec<_>, _>>()?;
        registers.try_into().map_err(|_| Unreadable(format!("{text:?}")))
    }

    /// `[%at+8]`
    fn address(&self, text: &str) -> Result<(Operand, i64), Unreadable> {
        let within = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        let Some(within) = within else { return unknown(text) };
        let (base, offset) = within.split_once('+').unwrap_or((within, "0"));
        let offset = offset.trim().parse().map_err(|_| Unreadable(format!("{text:?}")))?;
        Ok((self.operand(base.trim())?, offset))
    }
}

/// A number as PTX writes it: decimal, hexadecimal, or the bits of a number of single or double precision.
fn value(text: &str) -> Result<u64, Unreadable> {
    let bits = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let found = match text.get(..2) {
        Some("0x" | "0f" | "0F" | "0d" | "0D") => bits(&text[2..]),
        _ => text.parse().ok(),
    };
    found.ok_or_else(|| Unreadable(format!("{text:?}")))
}

/// Operands between commas; what is in braces is one.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut begin, mut depth) = (Vec::new(), 0, 0);
    for (place, letter) in text.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[begin..place].trim());
                begin = place + 1;
            }
            _ => {}
        }
    }
    parts.push(text[begin..].trim());
    parts
}

fn step(line: &str, names: &Names) -> Result<Step, Unreadable> {
    let (guard, rest) = match line.strip_prefix('@') {
        Some(rest) => {
            let (guard, rest) = rest.split_once(' ').ok_or_else(|| Unreadable(format!("{line:?}")))?;
            let wanted = !guard.starts_with('!');
            (Some((names.register(guard.trim_start_matches('!'))?, wanted)), rest.trim())
        }
        None => (None, line),
    };
    let (word, operands) = rest.split_once(' ').unwrap_or((rest, ""));
    let operands = split(operands.trim());
    let parts: Vec<&str> = word.split('.').collect();
    match (parts.as_slice(), operands.as_slice()) {
        (["bra"], [label]) => {
            let target = names.labels.get(*label).ok_or_else(|| Unreadable(format!("{line:?}")))?;
            Ok(Step::Branch(*target, guard))
        }
        _ if guard.is_some() => unknown(line),
        (["ret"], _) => Ok(Step::Return),
        (["st", "global", kind], [address, value]) => {
            let (base, offset) = names.address(address)?;
            Ok(Step::Store(width(kind)?, base, offset, names.operand(value)?))
        }
        (
            ["mma", "sync", "aligned", "m16n8k16", "row", "col", "f32", "f16", "f16", "f32"],
            [sums, left, right, addends],
        ) => Ok(Step::Product {
            sums: names.registers_of(sums)?,
            left: names.registers_of(left)?,
            right: names.registers_of(right)?,
            addends: names.registers_of(addends)?,
        }),
        (_, [to, from @ ..]) => Ok(Step::Set(names.register(to)?, action(line, &parts, from, names)?)),
        _ => unknown(line),
    }
}

fn action(line: &str, parts: &[&str], from: &[&str], names: &Names) -> Result<Action, Unreadable> {
    let pair = |pair, kind| Ok(Action::Pair(pair, width(kind)?, names.operands(from)?));
    match (parts, from) {
        (["mov", kind], [from]) => width(kind).and_then(|_| Ok(Action::Move(names.operand(from)?))),
        (["ld", "param", _], [name]) => {
            let place = names.parameters.iter().position(|its| format!("[{its}]") == *name);
            place.map(Action::Parameter).ok_or_else(|| Unreadable(format!("{line:?}")))
        }
        (["ld", "global", kind] | ["ld", "volatile", "global", kind], [address]) => {
            let (base, offset) = names.address(address)?;
            Ok(Action::Load(width(kind)?, base, offset))
        }
        (["add", kind @ ("u32" | "u64")], _) => pair(Pair::Add, kind),
        (["sub", kind @ ("u32" | "u64")], _) => pair(Pair::Subtract, kind),
        (["mul", "lo", kind @ ("u32" | "u64")], _) => pair(Pair::Multiply, kind),
        (["shr", kind @ ("u32" | "u64")], _) => pair(Pair::ShiftRight, kind),
        (["and", kind @ ("b32" | "b64")], _) => pair(Pair::And, kind),
        (["or", kind @ ("b32" | "b64")], _) => pair(Pair::Or, kind),
        (["xor", kind @ ("b32" | "b64")], _) => pair(Pair::Xor, kind),
        (["setp", "ne", kind @ ("u32" | "u64")], _) => pair(Pair::NotEqual, kind),
        (["setp", "eq", kind @ ("u32" | "u64")], _) => pair(Pair::Equal, kind),
        (["setp", "lt", kind @ ("u32" | "u64")], _) => pair(Pair::Less, kind),
        (["setp", "ge", kind @ ("u32" | "u64")], _) => pair(Pair::GreaterOrEqual, kind),
        (["mad", "lo", kind @ ("u32" | "u64")], _) => Ok(Action::MultiplyAdd(width(kind)?, names.operands(from)?)),
        (["mul", "wide", "u32"], _) => Ok(Action::MultiplyWide(names.operands(from)?)),
        (["fma", "rn", "f32"], _) => Ok(Action::FusedSingle(names.operands(from)?)),
        (["fma", "rn", "f64"], _) => Ok(Action::FusedDouble(names.operands(from)?)),
        (["cvt", "u64", "u32"], [from]) => Ok(Action::Convert(Conversion::WordToLong, names.operand(from)?)),
        (["cvt", "f64", "f32"], [from]) => Ok(Action::Convert(Conversion::SingleToDouble, names.operand(from)?)),
        (["cvt", "rni", "s32", "f32"], [from]) => {
            Ok(Action::Convert(Conversion::SingleToInteger, names.operand(from)?))
        }
        (["selp", kind], _) => width(kind).and_then(|_| Ok(Action::Select(names.operands(from)?))),
        _ => unknown(line),
    }
}
