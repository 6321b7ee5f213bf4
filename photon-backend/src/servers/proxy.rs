//! A proxy that breaks connections.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What is done to the bytes.
#[derive(Debug, Clone, Copy)]
enum Mode {
    Forward,
    Delay(Duration),
    Stall,
    Refuse,
}

/// What all connections look at.
#[derive(Debug, Clone, Copy)]
struct Weather {
    mode: Mode,
    /// Raised to cut every connection that is open.
    cuts: u64,
    /// How many bytes of answers still pass before every connection is cut.
    answer_left: Option<usize>,
}

/// A TCP proxy on 127.0.0.1 before a server. At first it passes everything on.
///
/// Its calls wait for nothing; what they ask for happens as soon as its tasks run. It ends, with its connections, when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    weather: Arc<watch::Sender<Weather>>,
    open: Arc<AtomicUsize>,
    accepted: Arc<AtomicUsize>,
}

impl Proxy {
    /// Starts one before this address.
    pub async fn before(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let addr = listener.local_addr()?;
        let weather = Weather { mode: Mode::Forward, cuts: 0, answer_left: None };
        let weather = Arc::new(watch::Sender::new(weather));
        let proxy = Self { addr, weather, open: Arc::default(), accepted: Arc::default() };
        let gate = Gate {
            addr,
            server,
            weather: Arc::downgrade(&proxy.weather),
            seen: proxy.weather.subscribe(),
            open: Arc::clone(&proxy.open),
            accepted: Arc::clone(&proxy.accepted),
        };
        tokio::spawn(gate.keep(listener));
        Ok(proxy)
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// How many connections are open now.
    pub fn connections(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// How many connections were accepted since it was started.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Passes everything on.
    pub fn forward(&self) {
        self.weather.send_modify(|weather| {
            (weather.mode, weather.answer_left) = (Mode::Forward, None);
        });
    }

    /// Passes everything on, each piece this much later. More than one piece waits at a time for each other.
    pub fn delay(&self, by: Duration) {
        self.weather.send_modify(|weather| weather.mode = Mode::Delay(by));
    }

    /// Passes nothing on, in both directions, and keeps every connection open, new ones too.
    pub fn stall(&self) {
        self.weather.send_modify(|weather| weather.mode = Mode::Stall);
    }

    /// Resets every connection that is open. New ones go through as before.
    pub fn cut(&self) {
        self.weather.send_modify(|weather| weather.cuts += 1);
    }

    /// Resets every connection and refuses new ones, until told otherwise.
    pub fn refuse(&self) {
        self.weather.send_modify(|weather| {
            weather.mode = Mode::Refuse;
            weather.cuts += 1;
        });
    }

    /// Lets so many bytes of the server's answers pass, over all connections together, then resets every
    /// connection that is open; after that everything passes again. So an answer ends in its middle.
    pub fn cut_after(&self, answer_bytes: usize) {
        self.weather.send_modify(|weather| weather.answer_left = Some(answer_bytes));
    }
}

/// What accepts connections.
struct Gate {
    addr: SocketAddr,
    server: SocketAddr,
    weather: std::sync::Weak<watch::Sender<Weather>>,
    seen: watch::Receiver<Weather>,
    open: Arc<AtomicUsize>,
    accepted: Arc<AtomicUsize>,
}

impl Gate {
    async fn keep(mut self, listener: TcpListener) {
        let mut listener = Some(listener);
        loop {
            let refuses = matches!(self.seen.borrow_and_update().mode, Mode::Refuse);
            if refuses {
                listener = None;
            } else if listener.is_none() {
                listener = TcpListener::bind(self.addr).await.ok();
                if listener.is_none() {
                    // Somebody else took the port for a moment: an outgoing connection can.
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    continue;
                }
            }
            let accepted = async {
                match &listener {
                    Some(listener) => listener.accept().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.seen.changed() => if changed.is_err() { return },
                client = accepted => if let Ok((client, _)) = client { self.pass(client) },
            }
        }
    }

    fn pass(&self, mut client: TcpStream) {
        let (server, weather, seen) = (self.server, self.weather.clone(), self.seen.clone());
        let Weather { mode, cuts, .. } = *seen.borrow();
        if matches!(mode, Mode::Refuse) {
            // It was accepted in the moment before.
            let _ = client.set_zero_linger();
            return;
        }
        let open = Open::new(&self.open);
        self.accepted.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            let _open = open;
            let Ok(mut server) = TcpStream::connect(server).await else { return };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let (from_client, to_client) = client.split();
            let (from_server, to_server) = server.split();
            let up = Pipe { from: from_client, to: to_server, seen: seen.clone(), answers: None };
            let down = Pipe { from: from_server, to: to_client, seen: seen.clone(), answers: Some(weather) };
            let was_cut = tokio::select! {
                end = up.pump() => end == End::Cut,
                end = down.pump() => end == End::Cut,
                () = cut(seen, cuts) => true,
            };
            if was_cut {
                // Dropped now, they are reset: the other ends see a break, and not an end.
                let _ = (client.set_zero_linger(), server.set_zero_linger());
            }
        });
    }
}

/// Counts a connection while it lives.
struct Open(Arc<AtomicUsize>);

impl Open {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns when connections are cut that were accepted after so many cuts, or when the proxy is gone.
async fn cut(mut seen: watch::Receiver<Weather>, cuts: u64) {
    let _ = seen.wait_for(|weather| weather.cuts != cuts).await;
}

/// How a connection came to its end.
#[derive(PartialEq, Eq)]
enum End {
    /// One of the ends closed it.
    Closed,
    /// The proxy broke it.
    Cut,
}

/// One direction of a connection.
struct Pipe<'a> {
    from: ReadHalf<'a>,
    to: WriteHalf<'a>,
    seen: watch::Receiver<Weather>,
    /// Of the way from the server: whose bytes are counted.
    answers: Option<std::sync::Weak<watch::Sender<Weather>>>,
}

impl Pipe<'_> {
    /// Passes bytes on until one end closes.
    async fn pump(mut self) -> End {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(read) = self.from.read(&mut buffer).await
            && read > 0
        {
            let mode = self.seen.borrow().mode;
            if let Mode::Delay(by) = mode {
                tokio::time::sleep(by).await;
            }
            if self.seen.wait_for(|weather| !matches!(weather.mode, Mode::Stall)).await.is_err() {
                return End::Cut;
            }
            let pass = self.allowed(read);
            if self.to.write_all(&buffer[..pass]).await.is_err() {
                return End::Closed;
            }
            if pass < read {
                return End::Cut;
            }
        }
        End::Closed
    }

    /// How many of these bytes may pass. At the end of what is allowed every connection is cut.
    fn allowed(&self, read: usize) -> usize {
        let Some(weather) = self.answers.as_ref().and_then(std::sync::Weak::upgrade) else { return read };
        let mut pass = read;
        weather.send_if_modified(|weather| {
            let Some(left) = weather.answer_left else { return false };
            pass = read.min(left);
            let spent = read >= left;
            weather.answer_left = (!spent).then_some(left - pass);
            weather.cuts += u64::from(spent);
            spent
        });
        pass
    }
}
