//! Packets of git's: what is read is written as it was, and a packet is the same
//! whatever has come of the next.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sandbox_proxy::git::pkt::{self, Malformed};

fuzz_target!(|bytes: &[u8]| {
    let (mut rest, mut written) = (bytes, Vec::new());
    loop {
        match pkt::read(rest) {
            Ok(Some((packet, used))) => {
                for length in 0..used {
                    assert_eq!(pkt::read(&rest[..length]), Ok(None));
                }
                assert_eq!(pkt::read(&rest[..used]), Ok(Some((packet, used))));
                let before = written.len();
                pkt::write(packet, &mut written);
                // An empty packet is not written.
                if packet != pkt::Packet::Data(b"") {
                    assert_eq!(written[before..], rest[..used]);
                }
                rest = &rest[used..];
            }
            Ok(None) => return,
            Err(Malformed) => {
                let longer = [rest, b"0000"].concat();
                assert_eq!(pkt::read(&longer), Err(Malformed));
                return;
            }
        }
    }
});
