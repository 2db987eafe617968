//! One of the compared engines in a process of its own, and the way to ask it.

use super::ask::Asked;
use super::peer::Bare;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::str::FromStr;
use std::time::Instant;

/// Requests that an engine takes at once.
pub(crate) const SLOTS: usize = 4;
/// Prompt and answer together.
pub(crate) const CONTEXT: u32 = 1_024;
/// Tokens generated where decoding is measured.
const DECODED: u32 = 48;
/// Sentences of the prompt where prompts are measured: about ten tokens each.
const SENTENCES: usize = 13;

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// llama.cpp by its own interface, with nothing around it.
    Peer,
    /// Our engine on candle.
    Candle,
    /// Our engine on llama.cpp.
    Speed,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Peer, Self::Candle, Self::Speed];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Peer => "llama.cpp",
            Self::Candle => "engine llm",
            Self::Speed => "engine llama-cpp",
        }
    }
}

impl FromStr for Kind {
    type Err = String;
    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| format!("no engine `{name}`"))
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Prompt tokens a second, until the first token of the last request.
    Prompt,
    /// Generated tokens a second, all requests together, while all of them decode.
    Decode,
}

impl Measure {
    pub(crate) const ALL: [Self; 2] = [Self::Prompt, Self::Decode];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Prompt => "prompt",
            Self::Decode => "decode",
        }
    }
}

/// What each of the requests asks for.
pub(crate) struct Task {
    pub(crate) prompts: Vec<String>,
    pub(crate) tokens: u32,
}

/// What one request got: when its tokens came.
pub(crate) struct Answered {
    pub(crate) prompt_tokens: u32,
    pub(crate) came: Vec<Instant>,
}

impl Task {
    /// No two requests of a run begin alike, so that nothing can be taken from a cache.
    fn new(measure: Measure, crowd: usize, round: usize) -> Self {
        let tokens = if measure == Measure::Prompt { 1 } else { DECODED };
        let prompt = |request: usize| {
            let number = round * 100 + crowd * 10 + request;
            match measure {
                Measure::Prompt => {
                    let text = "The tide comes in over the sand and goes out again. ".repeat(SENTENCES);
                    format!("{number} times the boats went out. {text}")
                }
                // Any model goes on with this for as long as it may.
                Measure::Decode => format!("Counting from {number}: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,"),
            }
        };
        Self { prompts: (0..crowd).map(prompt).collect(), tokens }
    }

    fn rate(&self, measure: Measure, begun: Instant, answers: &[Answered]) -> Result<f64, String> {
        let firsts = answers.iter().filter_map(|answer| answer.came.first()).max();
        let lasts = answers.iter().filter_map(|answer| answer.came.last()).min();
        let (Some(first), Some(last)) = (firsts, lasts) else { return Err("a request got no token".to_owned()) };
        if measure == Measure::Prompt {
            let tokens: u32 = answers.iter().map(|answer| answer.prompt_tokens).sum();
            return Ok(f64::from(tokens) / first.duration_since(begun).as_secs_f64());
        }
        if answers.iter().any(|answer| answer.came.len() < self.tokens as usize / 2) || last <= first {
            let came: Vec<usize> = answers.iter().map(|answer| answer.came.len()).collect();
            return Err(format!("a request ended too early to be measured ({came:?} tokens): take another model"));
        }
        let within = |answer: &Answered| answer.came.iter().filter(|at| *at > first && *at <= last).count();
        let tokens: usize = answers.iter().map(within).sum();
        Ok(tokens as f64 / last.duration_since(*first).as_secs_f64())
    }
}

/// Something that can be measured.
pub(crate) trait Subject {
    /// Runs these requests at once.
    fn run(&mut self, task: &Task) -> Result<Vec<Answered>, Box<dyn Error>>;
}

/// The process of one engine: answers a line with a rate for each line that says what to measure.
pub(crate) fn serve(kind: Kind, model: &Path, threads: usize) -> Result<(), Box<dyn Error>> {
    let mut subject: Box<dyn Subject> = match kind {
        Kind::Peer => Box::new(Bare::load(model, threads)?),
        Kind::Candle | Kind::Speed => Box::new(Asked::start(kind, model, threads)?),
    };
    // A first request warms memory and threads.
    subject.run(&Task::new(Measure::Decode, SLOTS, 90))?;
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split(' ');
        let name = words.next().unwrap_or_default();
        let measure = Measure::ALL.into_iter().find(|measure| measure.name() == name).ok_or("no such measurement");
        let mut number = || words.next().and_then(|word| word.parse().ok()).ok_or("want a number");
        let (measure, crowd, round) = (measure?, number()?, number()?);
        let task = Task::new(measure, crowd, round);
        let begun = Instant::now();
        let answers = subject.run(&task)?;
        println!("{}", task.rate(measure, begun, &answers)?);
    }
    Ok(())
}

/// The processes of all engines.
pub(crate) struct Workers(Vec<(Kind, Worker)>);

struct Worker {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Workers {
    pub(crate) fn start(model: &Path, threads: usize) -> Result<Self, Box<dyn Error>> {
        let mut workers = Vec::new();
        for kind in Kind::ALL {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["--worker", kind.name(), "--threads", &threads.to_string()]).arg("--model").arg(model);
            // The pools under candle's kernels are sized so.
            command.env("CANDLE_NUM_THREADS", threads.to_string()).env("RAYON_NUM_THREADS", threads.to_string());
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            let (to, from) = (child.stdin.take().ok_or("no way in")?, child.stdout.take().ok_or("no way out")?);
            let mut worker = Worker { child, to, from: BufReader::new(from) };
            let said = worker.line()?;
            if said != "ready" {
                return Err(format!("{}: {said}", kind.name()).into());
            }
            workers.push((kind, worker));
        }
        Ok(Self(workers))
    }

    /// Tokens per second.
    pub(crate) fn ask(&mut self, kind: Kind, measure: Measure, crowd: usize, round: usize) -> Result<f64, Box<dyn Error>> {
        let worker = self.0.iter_mut().find(|(of, _)| *of == kind).ok_or("not started")?;
        writeln!(worker.1.to, "{} {crowd} {round}", measure.name())?;
        Ok(worker.1.line()?.parse()?)
    }
}

impl Worker {
    fn line(&mut self) -> Result<String, Box<dyn Error>> {
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            return Err("the engine's process ended; what it said is above".into());
        }
        Ok(line.trim().to_owned())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).ok();
    }
}
