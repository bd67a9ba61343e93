//! One fault for each of two checkers, which have to find it: a checker that looks at nothing finds nothing either.

use std::hint::black_box;

static mut COUNT: u64 = 0;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("address") => {
            let bytes = black_box([7_u8; 8]);
            // SAFETY: none. It reads one byte beyond the variable.
            println!("{}", unsafe { *black_box(bytes.as_ptr()).add(black_box(bytes.len())) });
        }
        Some("thread") => {
            // SAFETY: none. Two threads change it, and nothing orders them.
            let count = || (0..100_000).for_each(|_| unsafe { *black_box(&raw mut COUNT) += 1 });
            std::thread::scope(|scope| drop([scope.spawn(count), scope.spawn(count)]));
        }
        _ => std::process::exit(2),
    }
}
