//! The controller against a simulated link, and the throttle's decisions.

use super::*;

fn options() -> DrbdPace {
    DrbdPace::of(&PeerDeviceOptions::default())
}

fn turn(elapsed_ms: u64, replied: u64, in_flight: u64) -> Turn {
    Turn {
        elapsed: Duration::from_millis(elapsed_ms),
        replied: Sectors(replied),
        in_flight: Sectors(in_flight),
        max_buffers_pages: 2048,
        bitmap_block: Sectors(8),
    }
}

/// Runs turns of 100 ms against a link that delivers `sectors_per_turn` and returns per turn
/// what was requested and what is in flight.
fn run(options: &DrbdPace, sectors_per_turn: u64, turns: usize) -> Vec<(u64, u64)> {
    let (mut controller, mut in_flight) = (Controller::new(), 0u64);
    let mut history = Vec::new();
    for _ in 0..turns {
        let replied = in_flight.min(sectors_per_turn);
        in_flight -= replied;
        let request = controller.turn(options, &turn(100, replied, in_flight)).0;
        in_flight += request;
        history.push((request, in_flight));
    }
    history
}

#[test]
fn the_first_turn_starts_at_resync_rate() {
    // want = 250 KiB/s * 2 * 0.1 s * 20 steps = 1000 sectors; a twentieth of it now: 50 sectors,
    // of which 6 blocks of 8 are whole.
    let mut controller = Controller::new();
    assert_eq!(controller.turn(&options(), &turn(100, 0, 0)), Sectors(48));
    assert_eq!(controller.planned_sectors, 950);
}

#[test]
fn the_plan_follows_the_formula_step_by_step() {
    let mut controller = Controller::new();
    controller.turn(&options(), &turn(100, 0, 0));
    // want 100, in flight 0, planned 950: corr = -850, -42 per step, first slot 50 - 42 = 8,
    // request = 48 + 8.
    assert_eq!(controller.turn(&options(), &turn(100, 48, 0)), Sectors(56));
    assert_eq!(controller.planned_sectors, 950 - 42 * 20 - 8);
}

#[test]
fn short_turns_scale_the_arrivals_to_a_whole_one() {
    let mut controller = Controller::new();
    controller.turn(&options(), &turn(100, 0, 0));
    // 24 sectors in 50 ms count as 48 in 100 ms: same as above.
    assert_eq!(controller.turn(&options(), &turn(50, 24, 0)), Sectors(56));
}

#[test]
fn it_ramps_up_and_settles_at_the_fill_target() {
    let options = options();
    let history = run(&options, 4096, 400);
    assert!(history[0].1 < 100 && history[20].0 > 0);
    let fill = options.c_fill_target.0;
    for (request, in_flight) in &history[300..] {
        assert!(*request > 0);
        // Each turn everything arrives, so the request itself is what is in flight.
        assert!((fill - 16..=options.c_max_rate.sectors() / 10).contains(in_flight));
    }
}

#[test]
fn on_a_slow_link_the_data_in_flight_stays_at_the_fill_target() {
    let options = options();
    for (request, in_flight) in &run(&options, 64, 600)[500..] {
        assert!((48..=80).contains(request), "request {request}");
        // The target applies before the turn's own request, here 64 sectors.
        let before = in_flight - request;
        assert!((76..=124).contains(&before), "in flight {before}");
    }
}

#[test]
fn the_delay_target_replaces_a_fill_target_of_zero() {
    let mut options = options();
    options.c_fill_target = Sectors(0);
    // 1 s of delay at 64 sectors per turn: ten turns worth in flight.
    for (_, in_flight) in &run(&options, 64, 900)[800..] {
        assert!((540..=740).contains(in_flight), "in flight {in_flight}");
    }
}

#[test]
fn c_max_rate_caps_every_turn_and_zero_does_not() {
    let mut options = options();
    options.c_fill_target = Sectors(1_000_000);
    options.c_max_rate = KibPerSecond(1000);
    assert!(run(&options, 1 << 20, 100).iter().all(|(request, _)| *request <= 200));
    options.c_max_rate = KibPerSecond(0);
    assert!(run(&options, 1 << 20, 100).iter().any(|(request, _)| *request > 10_000));
}

#[test]
fn without_a_plan_the_rate_is_fixed() {
    let mut options = options();
    options.c_plan_ahead = Duration::ZERO;
    options.resync_rate = KibPerSecond(4000);
    for in_flight in [0, 100, 10_000] {
        // 4000 KiB/s are 100 blocks of 4 KiB per turn.
        let got = Controller::new().turn(&options, &turn(100, 500, in_flight));
        assert_eq!(got, Sectors(100 * 8));
    }
}

#[test]
fn max_buffers_limits_the_data_in_flight() {
    let mut options = options();
    options.c_plan_ahead = Duration::ZERO;
    options.resync_rate = KibPerSecond(400_000);
    let mut small = turn(100, 0, 8 * 30);
    small.max_buffers_pages = 32;
    assert_eq!(Controller::new().turn(&options, &small), Sectors(16));
    small.in_flight = Sectors(8 * 32 + 1);
    assert_eq!(Controller::new().turn(&options, &small), Sectors(0));
}

#[test]
fn requests_are_rounded_up_to_coarser_bitmap_blocks() {
    let coarse = Turn { bitmap_block: Sectors(128), ..turn(100, 0, 0) };
    assert_eq!(Controller::new().turn(&options(), &coarse), Sectors(128));
}

#[test]
fn a_changed_plan_starts_over() {
    let mut options = options();
    let mut controller = Controller::new();
    controller.turn(&options, &turn(100, 0, 0));
    options.c_plan_ahead = Duration::from_secs(1);
    controller.turn(&options, &turn(100, 48, 0));
    assert_eq!(controller.plan.len(), 10);
    assert_eq!(controller.planned_sectors, controller.plan.iter().sum::<i64>());
}

#[test]
fn absurd_inputs_do_not_overflow() {
    let mut options = options();
    options.c_fill_target = Sectors(0);
    let mut controller = Controller::new();
    let absurd = Turn {
        elapsed: Duration::ZERO,
        replied: Sectors(u64::MAX),
        in_flight: Sectors(u64::MAX),
        max_buffers_pages: 131_072,
        bitmap_block: Sectors(8),
    };
    for i in 0..1000 {
        let calm = turn(100, 8, 8);
        controller.turn(&options, if i % 3 == 0 { &absurd } else { &calm });
    }
}

#[test]
fn the_next_turn_comes_sooner_after_a_short_one() {
    let next = |done, planned| Controller::next_turn(Sectors(done), Sectors(planned)).as_millis();
    assert_eq!(next(50, 100), 50);
    assert_eq!(next(100, 100), 100);
    assert_eq!(next(0, 0), 100);
    assert_eq!(next(0, 100), 100, "nothing could be requested: do not spin");
}

fn at(ms: u64) -> Instant {
    Instant(ms * 1_000_000)
}

/// A throttle after 9 s of a resync that did `kib_per_s`.
fn running(kib_per_s: u64) -> (Throttle, Sectors) {
    let mut left = Sectors(1 << 30);
    let mut throttle = Throttle::new(at(0), left, Sectors(0));
    for s in 1..=9 {
        left -= Sectors(kib_per_s * 2);
        throttle.marks.advance(at(s * 1000), left);
    }
    (throttle, left)
}

const BUSY: Load = Load { application_active: true, foreign_total: Sectors(0) };

/// Asks for 8 sectors.
fn admits(throttle: &mut Throttle, ms: u64, left: Sectors, load: Load, kib_per_s: u32) -> bool {
    throttle.wait(at(ms), left, load, Some(KibPerSecond(kib_per_s)), Sectors(8)).is_none()
}

#[test]
fn a_fast_resync_waits_for_application_io() {
    let (mut throttle, left) = running(1000);
    assert_eq!(throttle.marks.speed(at(9000), left), KibPerSecond(1000));
    // A turn at 250 KiB/s is 50 sectors: six requests of 8, and a seventh that overdraws it.
    let admitted = |throttle: &mut Throttle, ms| {
        (0..100).take_while(|_| admits(throttle, ms, left, BUSY, 250)).count()
    };
    assert_eq!(admitted(&mut throttle, 9100), 7);
    assert_eq!(admitted(&mut throttle, 9101), 0);
    assert_eq!(admitted(&mut throttle, 9200), 6, "what was overdrawn is missing");
    assert_eq!(admitted(&mut throttle, 19_200), 7, "what was not used is not kept");
    assert!(!admits(&mut throttle, 19_200, left, BUSY, 250));
    assert!(admits(&mut throttle, 19_200, left, BUSY, 0), "c-min-rate off");
}

#[test]
fn a_large_request_is_paid_for_afterwards() {
    let (mut throttle, left) = running(1000);
    let rate = Some(KibPerSecond(1000));
    let mut admits = |ms| throttle.wait(at(ms), left, BUSY, rate, Sectors(2048)).is_none();
    assert!(admits(10_000));
    // 2000 sectors per second: the first one had 200 of them.
    assert!((1..=9).all(|tenth| !admits(10_000 + tenth * 100)));
    assert!(admits(11_000));
}

#[test]
fn an_idle_disk_never_waits_and_foreign_traffic_counts_from_65_sectors() {
    let (mut throttle, left) = running(1000);
    let mut many = |ms, foreign| {
        let load = Load { application_active: false, foreign_total: Sectors(foreign) };
        (0..100).take_while(|_| admits(&mut throttle, ms, left, load, 250)).count()
    };
    assert_eq!(many(9100, 0), 100);
    assert_eq!(many(9100, 64), 100);
    assert_eq!(many(9200, 65), 7, "adds up until it is noticed");
    assert_eq!(many(9299, 65), 6, "and counts for a turn");
    assert_eq!(many(9300, 65), 100, "noticed: counted from here");
}

#[test]
fn it_never_waits_while_the_amount_out_of_sync_is_not_shrinking() {
    let (mut throttle, left) = running(1000);
    // Writes dirtied more than the resync did since the mark the speed is measured from.
    let dirtied = Sectors(left.0 + 1_000_000);
    // Not even with the smallest positive rate.
    for rate in [250, 1] {
        assert!((0..100).all(|_| admits(&mut throttle, 9100, dirtied, BUSY, rate)));
    }
}

#[test]
fn the_speed_of_a_stalled_resync_fades() {
    let (throttle, left) = running(1000);
    let mut marks = throttle.marks.clone();
    marks.advance(at(60_000), left);
    assert!(marks.speed(at(60_000), left) < KibPerSecond(200));
}

#[test]
fn any_of_drbds_options_turns_its_controller_on_with_its_defaults_for_the_others() {
    let sources =
        PeerDeviceOptions { c_min_rate: Some(KibPerSecond(0)), ..PeerDeviceOptions::default() };
    assert_eq!(DrbdPace::if_set(&sources), None);
    let options = PeerDeviceOptions { c_max_rate: Some(KibPerSecond(102_400)), ..sources };
    let pace = DrbdPace::if_set(&options).unwrap();
    assert_eq!(pace, DrbdPace::of(&PeerDeviceOptions::default()));
    assert_eq!((pace.c_fill_target, pace.resync_rate), (Sectors(100), KibPerSecond(250)));
}

/// Users' I/O of which there is more at each of these moments.
fn working(ms: u64) -> Load {
    Load { application_active: false, foreign_total: Sectors(ms) }
}

#[test]
fn without_a_rate_the_source_answers_one_and_pauses_if_it_met_users() {
    let (mut throttle, left) = running(1000);
    let ask = |t: &mut Throttle, ms, seen| t.wait(at(ms), left, working(seen), None, Sectors(128));
    assert_eq!(ask(&mut throttle, 10_000, 0), None, "nobody works");
    // They have come: what is under way is enough, but for the least rate of 64 KiB in 256 ms.
    assert_eq!(ask(&mut throttle, 10_001, 8), Some(at(10_011)), "it is looked at again");
    assert_eq!(ask(&mut throttle, 10_256, 8), Some(at(10_257)));
    assert_eq!(ask(&mut throttle, 10_257, 8), None);
    assert_eq!(ask(&mut throttle, 10_258, 8), Some(at(10_268)), "one is under way");
    throttle.answered(at(10_259), Sectors(8));
    assert_eq!(ask(&mut throttle, 10_259, 8), None, "it met nobody");
    throttle.answered(at(10_261), Sectors(24));
    // Two of theirs: that is worth 200 ms, or 400 of their requests.
    assert_eq!(ask(&mut throttle, 10_460, 24), Some(at(10_461)));
    assert_eq!(ask(&mut throttle, 10_461, 24), None);
    throttle.answered(at(10_462), Sectors(40));
    assert_eq!(ask(&mut throttle, 10_470, 40 + 399 * 8), Some(at(10_480)));
    assert_eq!(ask(&mut throttle, 10_470, 40 + 400 * 8), None);
    assert_eq!(ask(&mut throttle, 11_600, 40 + 400 * 8), None, "they have gone");
}

#[test]
fn without_a_rate_the_source_gives_the_least_rate_however_many_it_meets() {
    let (mut throttle, left) = running(1000);
    let mut given = 0;
    for ms in 10_000..20_000 {
        while throttle.wait(at(ms), left, working(80 * ms), None, Sectors(128)).is_none() {
            throttle.answered(at(ms), Sectors(80 * (ms + 100)));
            given += 128;
        }
    }
    // The first one is from before users were seen.
    assert!((4900..=5256).contains(&given), "{given}");
}
