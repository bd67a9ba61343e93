//! PTX texts: their kernels, and their variables in global and constant memory. Source: PTX ISA, "State Spaces, Types,
//! and Variables".

use crate::image::Contents;
use crate::program::Programs;
use crate::static_data::Variable;

/// What a text holds; nothing if it is none.
pub(crate) fn contents(text: &str) -> Option<Contents> {
    if !text.contains(".version") || !text.contains(".target") {
        return None;
    }
    let variables: Vec<Variable> = statements(text).iter().flat_map(|statement| declared(statement)).collect();
    let static_bytes = variables.iter().fold(0_u64, |sum, variable| sum.saturating_add(variable.bytes));
    Some(Contents { kernels: kernels(text), variables, programs: Programs::new(), static_bytes })
}

/// What follows `.entry`.
fn kernels(text: &str) -> Vec<String> {
    let name = |rest: &str| -> String {
        let legal = |letter: &char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '$' | '%');
        rest.trim_start().chars().take_while(legal).collect()
    };
    text.split(".entry").skip(1).map(name).filter(|name| !name.is_empty()).collect()
}

/// What stands outside of functions, by statement. Of a variable's value only the number of its elements is kept, behind
/// an equals sign.
fn statements(text: &str) -> Vec<String> {
    let (mut found, mut statement) = (Vec::new(), String::new());
    let (mut braces, mut is_value, mut elements) = (0_u32, false, 0_u64);
    for letter in without_comments(text).chars() {
        match letter {
            '{' => {
                braces += 1;
                elements = if braces == 1 { 1 } else { elements };
            }
            '}' => {
                braces = braces.saturating_sub(1);
                match (braces, is_value) {
                    // Behind a function's body a new statement begins.
                    (0, false) => statement.clear(),
                    (0, true) => statement.push_str(&format!("={elements}")),
                    _ => {}
                }
            }
            ',' if braces == 1 => elements += 1,
            _ if braces > 0 => {}
            ';' => {
                found.push(std::mem::take(&mut statement));
                is_value = false;
            }
            '=' => is_value = true,
            ',' => {
                statement.push(letter);
                is_value = false;
            }
            _ if !is_value => statement.push(letter),
            _ => {}
        }
    }
    found
}

/// Without names of files as well, which stand in quotes.
fn without_comments(text: &str) -> String {
    let of_line = |line: &str| line.split("//").next().unwrap_or_default().split('"').step_by(2).collect::<String>();
    let text = text.lines().map(of_line).collect::<Vec<_>>().join(" ");
    let behind = |piece: &str| piece.split_once("*/").map(|(_, rest)| rest.to_owned()).unwrap_or_default();
    let mut pieces = text.split("/*");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |all, piece| all + " " + &behind(piece))
}

/// Of `.visible .global .align 8 .b8 one[2][4], two` two variables; none of what is not of these state spaces. The first
/// statement has the text's own directives before it.
fn declared(statement: &str) -> Vec<Variable> {
    // Words may follow on one another without a space.
    let spaced = statement.replace('.', " .");
    let space = [" .global", " .const"].iter().filter_map(|word| Some((spaced.find(word)?, word.len()))).min();
    let Some((at, length)) = space else { return Vec::new() };
    let (before, declaration) = (&spaced[..at], &spaced[at + length..]);
    if before.contains('(') || before.trim_end().ends_with(".extern") {
        return Vec::new();
    }
    let is_managed = declaration.contains(".managed");
    let element = element_bytes(declaration);
    let declarators = declaration.rsplit(')').next().unwrap_or_default().split(',');
    declarators.filter_map(|declarator| one(declarator, element, is_managed)).collect()
}

/// Of ` .align 8 .b8 name[2][4]=1` the name, and eight elements.
fn one(declarator: &str, element: u64, is_managed: bool) -> Option<Variable> {
    let (declarator, values) = declarator.split_once('=').unwrap_or((declarator, "1"));
    let (head, sides) = declarator.split_once('[').unwrap_or((declarator, ""));
    let name = head.split_whitespace().next_back().filter(|name| !name.starts_with('.'))?.to_owned();
    let side = |side: &str| match side.trim().trim_end_matches(']').trim() {
        "" => values.trim().parse().unwrap_or(1),
        side => number(side),
    };
    let sides = sides.split('[').filter(|part| !part.is_empty());
    let bytes = sides.fold(element, |bytes, part| bytes.saturating_mul(side(part)));
    (bytes > 0).then_some(Variable { name, bytes, is_managed })
}

fn number(text: &str) -> u64 {
    let text = text.trim_end_matches('U');
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    hexadecimal.map_or_else(|| text.parse(), |digits| u64::from_str_radix(digits, 16)).unwrap_or(1)
}

/// Bytes of a vector of the type that a declaration names.
fn element_bytes(declaration: &str) -> u64 {
    let words = || declaration.split_whitespace();
    let bits = |word: &str| word.strip_prefix('.')?.trim_start_matches(['b', 'u', 's', 'f']).parse::<u64>().ok();
    let vector = words().find_map(|word| word.strip_prefix(".v")?.parse().ok()).unwrap_or(1);
    words().find_map(bits).unwrap_or(0) / 8 * vector
}
