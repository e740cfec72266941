#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| sos_fuzz::card(data));
