//! A tenant with two GPUs whose kernels wait for each other, as those of NCCL do: each runs on its GPU from its launch on, and
//! gets on only while the other one runs as well. A gate that closes between the two launches leaves one of them spinning.

use gpool_policy::TenantId;
use gpool_policy::slice::{Class, Command, HostScheduler, Input, Parameters, Share};
use gpool_policy::timeline::Burst;

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
const SECOND: u64 = 1_000 * MS;
/// Time goes on in steps of this.
const STEP: u64 = 10 * US;
/// How long the device works on a collective if it has both GPUs for itself.
const WORK: u64 = 700 * US;
const GANG: TenantId = TenantId(1);
/// How late a rank comes to launch its next kernel, at most.
const LATE: [u64; 3] = [100 * US, 300 * US, 700 * US];
/// What neighbours have done is told in pieces of this length.
const PIECE: u64 = MS;

/// One of the gang's two processes.
#[derive(Clone, Copy, Default)]
struct Rank {
    /// Since when its kernel runs.
    launched_ns: Option<u64>,
    /// When it comes to launch the next one.
    ready_ns: u64,
    /// Whether it stands at its gate, closed or used up.
    waits: bool,
}

/// A tenant of one GPU that works for exactly as long as its gate is open.
#[derive(Clone, Copy)]
struct Neighbour {
    gpu: usize,
    until_ns: Option<u64>,
    told_to_ns: u64,
    announced: bool,
    had_ns: u64,
}

struct World {
    now: u64,
    scheduler: HostScheduler,
    ranks: [Rank; 2],
    left_ns: u64,
    gate: Option<u64>,
    said: Option<Input>,
    neighbours: Vec<Neighbour>,
    collectives: u64,
    random: u64,
    late_ns: u64,
    closed_since_ns: u64,
    longest_closed_ns: u64,
}

impl World {
    fn new(share: Share, neighbours: bool, late_ns: u64) -> Self {
        let mut world = Self {
            now: 0,
            scheduler: HostScheduler::new(Parameters::default(), 2, 0),
            ranks: [Rank::default(); 2],
            left_ns: WORK,
            gate: None,
            said: None,
            neighbours: Vec::new(),
            collectives: 0,
            random: 20_261_124,
            late_ns,
            closed_since_ns: 0,
            longest_closed_ns: 0,
        };
        let mut commands = Vec::new();
        world.scheduler.join(0, GANG, [0, 1].into_iter().collect(), share, 0, &mut commands);
        for gpu in if neighbours { 0..2 } else { 0..0 } {
            let tenant = TenantId(2 + gpu as u64);
            world.scheduler.join(0, tenant, [gpu].into_iter().collect(), Share::of(500), 0, &mut commands);
            let (until_ns, told_to_ns) = (None, 0);
            world.neighbours.push(Neighbour { gpu, until_ns, told_to_ns, announced: false, had_ns: 0 });
        }
        world.obey(commands);
        (0..world.neighbours.len()).for_each(|index| world.tell(Input::Wants { tenant: TenantId(2 + index as u64) }));
        world
    }

    fn tell(&mut self, input: Input) {
        let mut commands = Vec::new();
        self.scheduler.handle(self.now, input, &mut commands);
        self.obey(commands);
    }

    fn burst(&mut self, gpu: usize, tenant: TenantId, (start_ns, end_ns): (u64, u64)) {
        let mut commands = Vec::new();
        self.scheduler.burst(self.now, gpu, Burst { tenant, context: 0, start_ns, end_ns }, &mut commands);
        self.obey(commands);
    }

    fn obey(&mut self, commands: Vec<Command>) {
        let mut closed = Vec::new();
        for command in commands {
            match command {
                Command::Open { tenant: GANG, until_ns, .. } => {
                    if self.gate.is_none() {
                        self.longest_closed_ns = self.longest_closed_ns.max(self.now - self.closed_since_ns);
                    }
                    (self.gate, self.said) = (Some(until_ns), None);
                    self.ranks.iter_mut().for_each(|rank| rank.waits = false);
                }
                Command::Close { tenant: GANG } => {
                    (self.gate, self.said, self.closed_since_ns) = (None, None, self.now);
                }
                Command::Open { tenant, until_ns, .. } => {
                    let now = self.now;
                    let neighbour = &mut self.neighbours[tenant.0 as usize - 2];
                    if neighbour.until_ns.is_none() {
                        neighbour.told_to_ns = now;
                    }
                    (neighbour.until_ns, neighbour.announced) = (Some(until_ns), false);
                }
                Command::Close { tenant } => closed.push(tenant),
                Command::Hung { tenant, .. } => panic!("{tenant:?} does not hang"),
            }
        }
        for tenant in closed {
            let index = tenant.0 as usize - 2;
            self.report(index);
            self.neighbours[index].until_ns = None;
            self.tell(Input::Wants { tenant });
        }
    }

    /// Tells what a neighbour has done since the last time.
    fn report(&mut self, index: usize) {
        let now = self.now;
        let neighbour = &mut self.neighbours[index];
        let (gpu, from_ns) = (neighbour.gpu, std::mem::replace(&mut neighbour.told_to_ns, now));
        if neighbour.until_ns.is_some() && from_ns < now {
            self.burst(gpu, TenantId(2 + index as u64), (from_ns, now));
        }
    }

    fn run_until(&mut self, end: u64) {
        while self.now < end {
            self.now += STEP;
            self.work();
            self.launch();
            self.say();
            for index in 0..self.neighbours.len() {
                let neighbour = self.neighbours[index];
                if neighbour.until_ns.is_some() && self.now - neighbour.told_to_ns >= PIECE {
                    self.report(index);
                }
                if !neighbour.announced && neighbour.until_ns.is_some_and(|until_ns| until_ns <= self.now) {
                    self.neighbours[index].announced = true;
                    let tenant = TenantId(2 + index as u64);
                    self.tell(Input::Announced { tenant, estimated_end_ns: self.now });
                }
            }
            if self.scheduler.next_timer().is_some_and(|at_ns| at_ns <= self.now) {
                self.tell(Input::Pass);
            }
        }
    }

    /// The device works for one step. It takes turns among those that have work on it.
    fn work(&mut self) {
        let is_at_work = |gpu: usize| self.neighbours.iter().any(|other| other.gpu == gpu && other.until_ns.is_some());
        let crowd = [0, 1].map(|gpu| u64::from(is_at_work(gpu)) + u64::from(self.ranks[gpu].launched_ns.is_some()));
        for neighbour in self.neighbours.iter_mut().filter(|neighbour| neighbour.until_ns.is_some()) {
            neighbour.had_ns += STEP / crowd[neighbour.gpu];
        }
        if self.ranks.iter().any(|rank| rank.launched_ns.is_none()) {
            return;
        }
        self.left_ns = self.left_ns.saturating_sub(STEP / crowd[0].max(crowd[1]));
        if self.left_ns > 0 {
            return;
        }
        self.left_ns = WORK;
        self.collectives += 1;
        for gpu in 0..2 {
            let launched_ns = self.ranks[gpu].launched_ns.take().expect("it ran");
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.ranks[gpu].ready_ns = self.now + (self.random >> 33) % self.late_ns.max(1);
            self.burst(gpu, GANG, (launched_ns, self.now));
        }
    }

    /// Each rank launches its next kernel, or comes to its gate.
    fn launch(&mut self) {
        let (now, gate) = (self.now, self.gate);
        for rank in self.ranks.iter_mut().filter(|rank| rank.launched_ns.is_none() && rank.ready_ns <= now) {
            rank.waits = gate.is_none_or(|until_ns| until_ns <= now);
            rank.launched_ns = (!rank.waits).then_some(now);
        }
    }

    /// What the ranks together want, as the supervisor reads it.
    fn say(&mut self) {
        let waits = self.ranks.iter().any(|rank| rank.waits);
        let runs = self.ranks.iter().any(|rank| rank.launched_ns.is_some());
        let end_ns = self.ranks.iter().filter_map(|rank| rank.launched_ns).map(|launched_ns| launched_ns + WORK).max();
        let input = match self.gate {
            _ if !waits => return,
            None if runs => Input::Wants { tenant: GANG },
            None => Input::Drained { tenant: GANG },
            Some(until_ns) => {
                let estimated_end_ns = end_ns.map_or(0, |end_ns| end_ns.max(until_ns));
                Input::Announced { tenant: GANG, estimated_end_ns }
            }
        };
        if self.said != Some(input) {
            self.said = Some(input);
            self.tell(input);
        }
    }

    /// What the gang's collectives would take alone, of all the time.
    fn permille(&self) -> u64 {
        self.collectives * WORK * 1_000 / self.now
    }
}

/// The longest that any gate of the gang was closed, and its collectives in permille of all the time, of which `best` are
/// what its share allows.
fn keeps_up(world: &World, best: u64) {
    let (closed_ms, had) = (world.longest_closed_ns / MS, world.permille());
    assert!(closed_ms < 250, "closed for {closed_ms} ms");
    assert!((best * 9 / 10..=best * 11 / 10).contains(&had), "{had} of {best}");
}

#[test]
fn a_gang_that_waits_for_itself_has_its_share_beside_others() {
    for late_ns in LATE {
        let mut world = World::new(Share::of(500), true, late_ns);
        world.run_until(20 * SECOND);
        // Of two that are late by 0 to `late_ns` the later one is by two thirds of it, and the GPUs are free meanwhile.
        keeps_up(&world, 500 * WORK / (WORK + late_ns * 2 / 3));
        for neighbour in &world.neighbours {
            let had = neighbour.had_ns * 1_000 / world.now;
            assert!((480..=530).contains(&had), "its neighbour on GPU {} has {had} of 500", neighbour.gpu);
        }
    }
}

#[test]
fn a_gang_that_waits_for_itself_alone_has_its_limit() {
    for late_ns in LATE {
        let mut world = World::new(Share { limit_permille: Some(500), ..Share::of(300) }, false, late_ns);
        world.run_until(20 * SECOND);
        // The kernel that came first has run meanwhile, for a third of `late_ns` in the mean of both.
        keeps_up(&world, 500 * WORK / (WORK + late_ns / 3));
    }
}

/// What it has launched may wait for a launch that stands at the gate: that is no hang, however long the gate is closed.
#[test]
fn a_gang_does_not_hang_while_its_gate_is_closed() {
    let mut world = World::new(Share::of(500), false, 0);
    let (mut scheduler, mut commands) = (world.scheduler.clone(), Vec::new());
    let hung = |commands: &mut Vec<Command>| {
        commands.drain(..).any(|command| matches!(command, Command::Hung { tenant: GANG, .. }))
    };
    scheduler.handle(MS, Input::Wants { tenant: GANG }, &mut commands);
    scheduler.handle(10 * SECOND, Input::Pause { tenant: GANG }, &mut commands);
    for second in 11..200 {
        scheduler.handle(second * SECOND, Input::Pass, &mut commands);
    }
    assert!(!hung(&mut commands), "paused");
    scheduler.handle(200 * SECOND, Input::Resume { tenant: GANG }, &mut commands);
    scheduler.handle(200 * SECOND, Input::Wants { tenant: GANG }, &mut commands);
    scheduler.handle(219 * SECOND, Input::Pass, &mut commands);
    assert!(!hung(&mut commands), "29 s of silence with an open gate");
    assert!(scheduler.next_timer().is_some_and(|at_ns| at_ns <= 220 * SECOND + MS));
    scheduler.handle(221 * SECOND, Input::Pass, &mut commands);
    assert!(hung(&mut commands), "31 s");
    world.run_until(MS);
}

/// Its program waits for what never ends, and does not come to the gate that a neighbour has had closed.
#[test]
fn a_gang_hangs_also_beside_a_neighbour_who_has_its_gpu() {
    let parameters = Parameters::default();
    let (mut scheduler, mut commands) = (HostScheduler::new(parameters, 2, 0), Vec::new());
    let neighbour = TenantId(2);
    scheduler.join(0, neighbour, [1].into_iter().collect(), Share::of(500), 0, &mut commands);
    scheduler.join(0, GANG, [0, 1].into_iter().collect(), Share::of(500), 0, &mut commands);
    scheduler.handle(MS, Input::Wants { tenant: GANG }, &mut commands);
    let (mut closed_ns, mut hung_ns) = (None, None);
    for step in 1..6_000 {
        let now_ns = step * 10 * MS;
        scheduler.handle(now_ns, Input::Wants { tenant: neighbour }, &mut commands);
        for command in commands.drain(..) {
            match command {
                Command::Close { tenant: GANG } => closed_ns = closed_ns.or(Some(now_ns)),
                Command::Hung { tenant: GANG, .. } => hung_ns = hung_ns.or(Some(now_ns)),
                _ => {}
            }
        }
    }
    assert!(closed_ns.is_some_and(|at_ns| at_ns < SECOND), "{closed_ns:?}");
    assert!(hung_ns.is_some_and(|at_ns| (30 * SECOND..31 * SECOND).contains(&at_ns)), "{hung_ns:?}");
}

/// The GPU that chooses a gang may be one on which nobody is in a hurry.
#[test]
fn a_gang_works_no_further_ahead_than_the_strictest_of_its_gpus_allows() {
    let parameters = Parameters::default();
    let mut scheduler = HostScheduler::new(parameters, 2, 0);
    let mut commands = Vec::new();
    let latency = Share { class: Class::Latency, ..Share::of(300) };
    scheduler.join(0, TenantId(2), [1].into_iter().collect(), latency, 0, &mut commands);
    scheduler.join(0, GANG, [0, 1].into_iter().collect(), Share::of(500), 0, &mut commands);
    scheduler.handle(MS, Input::Wants { tenant: TenantId(2) }, &mut commands);
    scheduler.handle(2 * MS, Input::Idle { tenant: TenantId(2) }, &mut commands);
    commands.clear();
    scheduler.handle(10 * MS, Input::Wants { tenant: GANG }, &mut commands);
    let depths: Vec<u64> = commands.iter().filter_map(depth_of).collect();
    assert_eq!(depths, [parameters.latency_depth_ns]);
    commands.clear();
    let end_ns = 10 * MS + parameters.alone_ns;
    scheduler.handle(end_ns, Input::Announced { tenant: GANG, estimated_end_ns: end_ns }, &mut commands);
    let depths: Vec<u64> = commands.iter().filter_map(depth_of).collect();
    assert_eq!(depths, [parameters.latency_depth_ns], "of a slice that is renewed as well");
}

fn depth_of(command: &Command) -> Option<u64> {
    match command {
        Command::Open { tenant: GANG, depth_ns, .. } => Some(*depth_ns),
        _ => None,
    }
}
