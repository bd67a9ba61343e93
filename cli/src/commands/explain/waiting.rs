//! Why a container waits for room, for people.

use crate::commands::queue;
use gpool_protocol::{WaitingView, format_seconds};

/// The one of `waiting` that a person means by the beginning of its id.
pub fn only_one<'a>(waiting: &'a [WaitingView], id: &str) -> Option<&'a WaitingView> {
    let mut meant = waiting.iter().filter(|one| one.container_id.0.starts_with(id));
    meant.next().filter(|_| meant.next().is_none())
}

/// Why one waits, and until when.
pub fn render_waiting(waiting: &WaitingView) -> String {
    let begins = queue::begins_in(waiting).map_or_else(String::new, |time| {
        format!("it can begin in {time} at the latest, by the run times of those before it\n")
    });
    let deadline = waiting.deadline_unix_ms.map_or_else(String::new, |_| {
        let left = format_seconds(queue::deadline_left_ms(waiting) / 1000);
        match waiting.is_at_risk {
            true => {
                format!("deadline in {left}, which will probably be missed: no room could be planned for it any more\n")
            }
            false => format!("deadline in {left}, and it will begin in time for that\n"),
        }
    });
    format!(
        "container {} waits for room: place {} of the queue, for {} of at most {}\n{}\n{begins}{deadline}",
        waiting.container_id.short(),
        waiting.place,
        format_seconds(waiting.waited_ms / 1000),
        format_seconds(waiting.request.wait_seconds.unwrap_or(0)),
        waiting.cause,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_room_is_told_what_for() {
        let waiting = |id: &str| -> WaitingView {
            let text = format!(
                r#"{{"container_id":"{id}","place":2,"owner_uid":0,"since_unix_ms":1,"waited_ms":90000,
                "request":{{"fraction_permille":500,"wait_seconds":600}},"cause":"GPU-1 has 10 % free"}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let all = [waiting("3f9a"), waiting("b7c1"), waiting("b7d2")];
        assert_eq!(only_one(&all, "b7c").map(|one| one.container_id.0.as_str()), Some("b7c1"));
        assert!(only_one(&all, "b7").is_none() && only_one(&all, "c").is_none());
        let text = render_waiting(&all[0]);
        assert!(text.contains("place 2 of the queue, for 1m30s of at most 10m\nGPU-1 has 10 % free"), "{text}");
        let mut hurried = WaitingView { deadline_unix_ms: Some(3_690_001), ..all[0].clone() };
        let in_time = render_waiting(&hurried);
        assert!(in_time.ends_with("\ndeadline in 1h, and it will begin in time for that\n"), "{in_time}");
        hurried.is_at_risk = true;
        let at_risk = render_waiting(&hurried);
        assert!(at_risk.contains("deadline in 1h, which will probably be missed"), "{at_risk}");
    }
}
