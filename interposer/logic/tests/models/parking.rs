//! The watcher parks, and is called back.

use gpool_interposer_logic::futex::Mutex;
use gpool_interposer_logic::parking::Parking;
use loom::thread;
use std::sync::Arc;

#[test]
fn whatever_is_issued_is_looked_at() {
    loom::model(|| {
        let (parking, issued) = (Arc::new(Parking::default()), Arc::new(Mutex::new(0)));
        let watcher = {
            let (parking, issued) = (parking.clone(), issued.clone());
            thread::spawn(move || {
                let mut seen = 0;
                while seen < 2 {
                    parking.mark();
                    let new = std::mem::take(&mut *issued.lock());
                    match new {
                        0 => parking.park(),
                        _ => {
                            parking.unmark();
                            seen += new;
                        }
                    }
                }
            })
        };
        for _ in 0..2 {
            *issued.lock() += 1;
            parking.call();
        }
        watcher.join().unwrap();
    });
}
