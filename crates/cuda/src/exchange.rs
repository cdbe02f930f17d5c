//! A device as one of several ranks: its window, the others' arenas, and operations put aside.

use super::CudaDevice;
use super::aside::{AsideStream, TURNS};
use super::driver::{Mark, words};
use super::peers::{HANDLE_BYTES, Peer, refused};
use cudarc::driver::sys;
use plimsoll_base::Result;
use plimsoll_device::Aside;
use plimsoll_memory::{Buf, Home};
use std::ffi::c_char;
use std::sync::atomic::Ordering;

impl CudaDevice {
    /// Returns what other ranks need to read this arena, for `join`.
    ///
    /// Errors: `ranks-window` with the words of the driver that refuses; `cuda-failed`.
    pub fn window(&mut self) -> Result<Vec<u8>> {
        self.aside = Some(AsideStream::new(&self.gpu)?);
        let aside = self.aside_stream();
        // What others follow has passed on a rank that only samples, and puts nothing aside.
        aside.marks.iter().for_each(|mark| self.record(mark, aside.stream.0));
        self.gpu.bind();
        let mut handle = sys::CUipcMemHandle { reserved: [0; HANDLE_BYTES] };
        // SAFETY: the arena is one allocation of this process, the handle a valid place.
        let got = unsafe { sys::cuIpcGetMemHandle(&mut handle, self.arena) };
        got.result().map_err(|err| refused("this card's memory", "cuIpcGetMemHandle", &words(err)))?;
        let mut window = u64::from(std::process::id()).to_le_bytes().to_vec();
        let mut item = |address: u64, handle: [c_char; HANDLE_BYTES]| {
            window.extend(address.to_le_bytes());
            window.extend(handle.map(|byte| byte as u8));
        };
        item(self.arena, handle.reserved);
        for Mark(event) in &aside.marks {
            let mut handle = sys::CUipcEventHandle { reserved: [0; HANDLE_BYTES] };
            // SAFETY: an event made for other processes, the handle a valid place.
            let got = unsafe { sys::cuIpcGetEventHandle(&mut handle, *event) };
            got.result().map_err(|err| refused("this card's events", "cuIpcGetEventHandle", &words(err)))?;
            item(*event as u64, handle.reserved);
        }
        Ok(window)
    }

    /// Opens the arenas of other ranks of this host by their windows, by rank; all have one layout and live as long.
    ///
    /// Errors: `ranks-window` with the words of the driver that refuses.
    pub fn join(&mut self, windows: &[Option<Vec<u8>>]) -> Result<()> {
        self.gpu.bind();
        for (of, window) in windows.iter().enumerate() {
            let peer = window.as_ref().map(|window| Peer::open(of, window)).transpose()?;
            self.peers.push(peer);
        }
        Ok(())
    }

    /// Returns the address of bytes of another rank's arena.
    pub(crate) fn address_there(&self, buf: Buf<'_>) -> u64 {
        let Home::Rank(rank) = buf.home() else { unreachable!("a buffer of another rank") };
        let peer = self.peers.get(usize::from(rank)).and_then(Option::as_ref);
        peer.expect("`join` comes before other ranks' buffers").address + buf.offset()
    }
}

impl CudaDevice {
    /// Returns the stream that operations are queued on now.
    pub(crate) fn stream(&self) -> sys::CUstream {
        match &self.aside {
            Some(aside) if self.is_aside() => aside.stream.0,
            _ => self.side.stream_if_on().unwrap_or(self.gpu.stream),
        }
    }

    /// True while operations go to the stream aside.
    pub(crate) fn is_aside(&self) -> bool {
        self.aside.as_ref().is_some_and(|aside| aside.is_on.load(Ordering::Relaxed))
    }

    fn aside_stream(&self) -> &AsideStream {
        self.aside.as_ref().expect("only a rank among others puts operations aside")
    }
}

impl Aside for CudaDevice {
    fn mark(&self, turn: usize) {
        let mark = &self.aside_stream().marks[turn % TURNS];
        self.record(mark, self.stream());
        // Sockets do not wait for it: it has passed when ranks meet.
        if self.far.is_some() && self.network.is_none() && !self.has_failed() {
            self.keep(mark.wait(), "waiting for what other hosts read");
        }
    }

    fn run(&self, turn: usize, ops: &mut dyn FnMut()) {
        let aside = self.aside_stream();
        self.follow(aside.stream.0, &aside.marks[turn % TURNS]);
        for peer in self.peers.iter().flatten() {
            self.follow(aside.stream.0, &peer.marks[turn % TURNS]);
        }
        let [begin, end] = aside.clock.next();
        self.record(begin, aside.stream.0);
        aside.is_on.store(true, Ordering::Relaxed);
        ops();
        aside.is_on.store(false, Ordering::Relaxed);
        self.record(end, aside.stream.0);
        self.record(&aside.marks[TURNS + turn % TURNS], aside.stream.0);
    }

    fn wait(&self, turn: usize) {
        let done = TURNS + turn % TURNS;
        self.follow(self.gpu.stream, &self.aside_stream().marks[done]);
        for peer in self.peers.iter().flatten() {
            self.follow(self.gpu.stream, &peer.marks[done]);
        }
    }

    fn seconds(&self) -> f64 {
        self.gpu.bind();
        self.aside_stream().clock.take()
    }
}
