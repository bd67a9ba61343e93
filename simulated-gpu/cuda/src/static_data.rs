//! What the static data of a module take of the device: the sizes that its image declares.

use crate::driver::{Driver, Outcome, lost};
use crate::objects::Place;
use gpool_driver_abi::cuda::CUDA_ERROR_OUT_OF_MEMORY;

/// Takes `bytes` in a context's name.
pub(crate) fn take(driver: &Driver, place: Place, bytes: u64) -> Outcome {
    if bytes == 0 {
        return Ok(());
    }
    let taken = driver.store(place)?.update(|device, now_ns| device.allocate(now_ns, place.id, bytes));
    taken.map_err(lost)?.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)
}

/// Gives back what [`take`] took.
pub(crate) fn give_back(driver: &Driver, place: Place, bytes: u64) -> Outcome {
    if bytes == 0 {
        return Ok(());
    }
    driver.store(place)?.update(|device, now_ns| device.free(now_ns, place.id, bytes)).map_err(lost)
}

/// Bytes of the variables in global and constant memory that a PTX text declares outside its functions.
pub(crate) fn text_bytes(text: &str) -> u64 {
    let plain: String =
        text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join(" ");
    let (mut bytes, mut depth, mut statement) = (0_u64, 0_u32, String::new());
    let mut is_value = false;
    for letter in plain.chars() {
        match letter {
            '{' => depth += 1,
            // Behind a function's body a new statement begins; behind a value's list the declaration goes on.
            '}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 && !is_value {
                    statement.clear();
                }
            }
            ';' if depth == 0 => {
                bytes = bytes.saturating_add(variable_bytes(&statement));
                statement.clear();
                is_value = false;
            }
            '=' if depth == 0 => is_value = true,
            _ if depth == 0 && !is_value => statement.push(letter),
            _ => {}
        }
    }
    bytes
}

/// Of `.visible .global .align 8 .b8 name[2][4]` eight; nothing of what is no variable of these spaces.
fn variable_bytes(statement: &str) -> u64 {
    let (head, sides) = statement.split_once('[').unwrap_or((statement, ""));
    let words: Vec<&str> = head.split_whitespace().collect();
    if !words.iter().any(|word| matches!(*word, ".global" | ".const")) || words.contains(&".extern") {
        return 0;
    }
    let bits = |word: &&str| word.strip_prefix(['.'])?.trim_start_matches(['b', 'u', 's', 'f']).parse::<u64>().ok();
    let element = words.iter().rev().find_map(bits).unwrap_or(0) / 8;
    let vector = if words.contains(&".v4") { 4 } else { 1 + u64::from(words.contains(&".v2")) };
    let count = |side: &str| side.trim().trim_end_matches(']').trim().parse::<u64>().unwrap_or(1);
    sides.split('[').fold(element * vector, |bytes, side| bytes.saturating_mul(count(side)))
}
