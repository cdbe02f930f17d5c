//! SSH: a script for machines without a scheduler. It starts each host's ranks through a connection, prints their
//! output with the host's name, ends all hosts when one ends, and restarts.
//!
//! Nothing outlives it: a host ends its run when its connection does, and the connections end with the script.

use crate::{File, Job, Kind, command, sh};
use plimsoll_base::{Error, Result};

/// Settings for SSH only.
#[derive(Clone, Debug, Default)]
pub struct Ssh {
    /// Names of the hosts, as `ssh` takes them; if empty, the list is left to fill in.
    pub hosts: Vec<String>,
}

/// Default port of host 0, which is torchrun's.
const PORT: u16 = 29_500;
/// Prefix of a host that is still to be filled in.
const TO_FILL_IN: &str = "HOST-";
/// After one host has ended, the others end by themselves within 12 seconds.
const GRACE_S: u32 = 20;

/// Returns the script and the list of hosts.
///
/// Errors: `launch-word`, `launch-shape` for another number of hosts.
pub fn files(job: &Job, ssh: &Ssh) -> Result<Vec<File>> {
    job.check()?;
    if !ssh.hosts.is_empty() && ssh.hosts.len() != job.hosts as usize {
        let message = format!("--host names {} of them, and --hosts is {}", ssh.hosts.len(), job.hosts);
        return Err(Error::usage("launch-shape", message).hint(format!("--hosts {}", ssh.hosts.len())));
    }
    let is_name = |host: &&String| {
        !host.is_empty()
            && !host.starts_with('-')
            && !host.contains(|c: char| c.is_whitespace() || c.is_control())
    };
    if let Some(host) = ssh.hosts.iter().find(|host| !is_name(host)) {
        let message = format!("{host:?} is no name of a host: it is empty, begins with `-` or has spaces");
        return Err(Error::usage("launch-word", message).hint("give it as ssh takes it: NAME or USER@NAME"));
    }
    let names = if ssh.hosts.is_empty() {
        (0..job.hosts).map(|host| format!("{TO_FILL_IN}{host}")).collect()
    } else {
        ssh.hosts.clone()
    };
    let list = format!(
        "# One host a line: NAME or USER@NAME, and after a space the address at which the others reach it, if that is another.\n\
         # Host 0 is the first; its ranks find the others.\n{}\n",
        names.join("\n")
    );
    Ok(vec![
        File { name: "hosts".into(), text: list, kind: Kind::Data },
        File { name: "start.sh".into(), text: script(job), kind: Kind::Script },
    ])
}

fn script(job: &Job) -> String {
    let script = include_str!("ssh.sh");
    let values = [
        ("@HEADLINE@", job.headline("ssh")),
        ("@HOSTS@", job.hosts.to_string()),
        ("@RESTARTS@", job.restarts.to_string()),
        ("@GRACE@", GRACE_S.to_string()),
        ("@TO_FILL_IN@", TO_FILL_IN.to_string()),
        ("@TOKEN@", sh::TOKEN.to_string()),
        ("@REMOTE@", sh::always_quoted(&remote(job))),
    ];
    values.into_iter().fold(script.to_string(), |text, (name, value)| text.replace(name, &value))
}

/// Returns a host's script. Arguments: its number, host 0's address. Stdin: the job's secret; its end ends the run.
fn remote(job: &Job) -> String {
    let port = job.port.unwrap_or(PORT);
    let mut words = command::of_host(job, "\0rank", "\0join");
    let (rank, join) = ("\"$1\"".to_string(), format!("\"$2:{port}\""));
    let shown = words.drain(..).map(|word| match word.as_str() {
        "\0rank" => rank.clone(),
        "\0join" => join.clone(),
        _ => sh::quoted(&word),
    });
    let line = shown.collect::<Vec<_>>().join(" ");
    format!(
        "\
IFS= read -r PLIMSOLL_TOKEN || exit 2
export PLIMSOLL_TOKEN
cd {} || exit 2
exec 3<&0 </dev/null
{}{}{}{line} 3<&- &
pid=$!
(cat <&3; kill -TERM $pid) >/dev/null 2>&1 &
watch=$!
wait $pid
code=$?
kill $watch 2>/dev/null
exit $code
",
        sh::quoted(&job.workdir),
        sh::open_files(job.host.open_files),
        job.lines_before(),
        job.exports(),
    )
}
