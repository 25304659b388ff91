//! Signals to processes outside, on every road that there is.

use super::{ATTACKERS, Victim, perform, refused};
use crate::{
    expect::{attack, compare},
    ground,
    host::{self, wait_until},
};

crate::trials![
    a_process_outside_is_sent_no_signal,
    a_signal_to_everybody_reaches_nobody_outside,
    the_kernel_sends_no_signal_on_a_sandboxes_behalf,
    a_sandbox_signals_its_own_processes,
];

const SIGNALS: [&str; 6] = [
    "kill PID 9",
    "kill PID 0",
    "tgkill PID 9",
    "tgkill PID 18",
    "pidfd-signal PID 9",
    "kill-group PID 9",
];

async fn a_process_outside_is_sent_no_signal() {
    for (uid, way) in ATTACKERS {
        ground::make(uid);
        let victim = Victim::of(uid);
        let cases = SIGNALS.map(|step| {
            let step = victim.aimed(step);
            refused(&step, "signal", &victim.object(), "another process")
        });
        let steps: Vec<&[&str]> = cases.iter().map(|case| case.step.as_slice()).collect();
        let ran = perform(uid, way, ground::POLICY, &steps).await;
        compare(uid, &cases, &ran);
        assert!(victim.alive());
        for step in SIGNALS {
            let victim = Victim::of(uid);
            assert_eq!(host::attack(uid, "/", &victim.aimed(step)), "ok", "{step}");
            if step.ends_with('9') {
                wait_until("it is dead", || !victim.alive()).await;
            }
        }
    }
}

/// To -1, which the kernel says is done where it was refused everywhere.
async fn a_signal_to_everybody_reaches_nobody_outside() {
    for (uid, way) in ATTACKERS {
        ground::make(uid);
        let victim = Victim::of(uid);
        let ran = perform(uid, way, ground::POLICY, &[&["kill-all", "9"]]).await;
        assert_eq!(ran.lines(), ["ok"], "{ran:?}");
        assert!(victim.alive());
        let mut found = 0;
        for denial in &ran.denials {
            assert_eq!(denial.operation, "signal", "{denial:#?}");
            found += u64::from(denial.object_display == victim.object());
        }
        assert_eq!(found, 1, "{ran:?}");
        assert_eq!(ran.exited.denied, ran.told().0, "{ran:?}");
    }
}

/// The kernel signals the owner of a file that can be read, in the name of
/// whoever set the owner, and asks nobody.
async fn the_kernel_sends_no_signal_on_a_sandboxes_behalf() {
    for (uid, way) in ATTACKERS {
        ground::make(uid);
        let victim = Victim::of(uid);
        let pid = victim.pid();
        let case = |step: &str, operation, to: &str| {
            let object = format!("owner of signals{to}");
            refused(&victim.aimed(step), operation, &object, "another process")
        };
        let by_fcntl = [
            case("signal-owner PID fcntl", "fcntl", &format!(" {pid}")),
            case("signal-owner PID group", "fcntl", &format!(" -{pid}")),
            case("signal-owner PID fcntl-ex", "fcntl", ""),
            case("terminal-signals", "fcntl", ""),
        ];
        let by_ioctl = [
            case("signal-owner PID fiosetown", "ioctl", ""),
            case("signal-owner PID siocspgrp", "ioctl", ""),
            case("terminal-signals-ioctl", "ioctl", ""),
        ];
        for cases in [by_fcntl.as_slice(), &by_ioctl] {
            let steps: Vec<&[&str]> = cases.iter().map(|case| case.step.as_slice()).collect();
            let ran = perform(uid, way, ground::POLICY, &steps).await;
            compare(uid, cases, &ran);
        }
        assert!(victim.alive());
        for how in ["fcntl", "group", "fcntl-ex", "fiosetown", "siocspgrp"] {
            let victim = Victim::of(uid);
            let step = victim.aimed(&format!("signal-owner PID {how}"));
            assert_eq!(host::attack(uid, "/", &step), "ok", "{how}");
            wait_until("it is dead", || !victim.alive()).await;
        }
        for how in ["terminal-signals", "terminal-signals-ioctl"] {
            assert_eq!(host::attack(uid, "/", &[how]), "ok");
        }
    }
}

async fn a_sandbox_signals_its_own_processes() {
    let cases = [
        attack(&["kill-child"]).passes(),
        attack(&["own-signals"]).finds("SIGIO"),
    ];
    super::check(&ATTACKERS, ground::POLICY, &cases).await;
}
