//! `limpet bundle`: makes a bundle, looks into it, checks it, and hands it to the agent.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use limpet_cli::error::CliError;
use limpet_cli::output::DocumentFormat;
use limpet_cli::screen::{Screen, printable};
use limpet_cli::validate::{MAX_BYTES, files_of_kubectl, read};
use limpet_core::byte_size;
use limpet_signature::{PublicKeys, SecretKey};
use limpet_wire::bundle::{BundleDocument, NodeKeyDocument};
use limpet_wire::socket_client::SocketClient;

use crate::bundle::Bundle;
use crate::create::{self, Created, Recipe};
use crate::error::BundleError;
use crate::inspect;
use crate::node_key::NodePublicKey;

/// The key that is used if none is named.
const DEFAULT_KEY: &str = "/etc/limpet/bundle.pub";

#[derive(Debug, clap::Args)]
pub struct BundleArgs {
    #[command(subcommand)]
    command: BundleCommand,
}

#[derive(Debug, clap::Subcommand)]
enum BundleCommand {
    /// Make a signed bundle of manifests and images
    Create(CreateArgs),
    /// Show what a bundle contains
    Inspect {
        /// The file of the bundle
        file: PathBuf,
        /// Check the signature with this public key first; otherwise it is not checked
        #[arg(long, value_name = "FILE")]
        key: Vec<PathBuf>,
        /// Output format
        #[arg(short, long)]
        output: Option<DocumentFormat>,
    },
    /// Check that a bundle is whole and signed. Exits with 1 when it is not
    Verify {
        /// The file of the bundle
        file: PathBuf,
        /// A public key that may have signed it [default: /etc/limpet/bundle.pub]
        #[arg(long, value_name = "FILE")]
        key: Vec<PathBuf>,
    },
    /// Run what a bundle contains, in place of the bundle before. A bundle that is refused changes nothing
    Apply {
        /// The file of the bundle
        file: PathBuf,
        /// Wait until updates may be applied: for their window and the applications that have a veto
        #[arg(long)]
        window: bool,
    },
    /// Let the next bundle have any serial, also a lower one
    ResetSerial,
    /// Print the public key of this node, to which Secrets of bundles are sealed
    NodeKey,
}

#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// What the bundle is for: a fleet, a product
    #[arg(long)]
    name: String,
    /// Its version, for people
    #[arg(long)]
    version: String,
    /// Higher than that of every bundle before [default: the seconds since 1970]
    #[arg(long, value_name = "NUMBER")]
    serial: Option<u64>,
    /// For how many of the nodes it is, decided by a hash of their names, such as 10%; a later one for more nodes has a
    /// higher serial. `limpet bundle apply` takes it on any node [default: all]
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    rollout: Option<u8>,
    /// Manifests, directories of manifests, or - for standard input
    #[arg(short, long = "filename", required = true, value_name = "FILE")]
    filename: Vec<PathBuf>,
    /// An archive of images: docker save, or an OCI layout as a tar
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// A bundle that the nodes have: its layers are left out
    #[arg(long, value_name = "BUNDLE")]
    from: Option<PathBuf>,
    /// Seal the Secrets to this node, so that nobody else can read them: what `limpet bundle node-key` prints there. One
    /// for each node that takes the bundle [default: not sealed]
    #[arg(long, value_name = "NODEKEY")]
    seal_to: Vec<PathBuf>,
    /// The secret key, made by minisign -G -W
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Where the bundle is written
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// Runs it; returns the exit code.
///
/// # Errors
/// Nothing was made or changed.
pub async fn run(client: &SocketClient, args: BundleArgs, screen: Screen) -> Result<u8, CliError> {
    match args.command {
        BundleCommand::Create(args) => create(args, screen),
        BundleCommand::Inspect { file, key, output } => show(&file, &key, output, screen),
        BundleCommand::Verify { file, key } => verify(&file, key, screen),
        BundleCommand::Apply { file, window } => apply(client, &file, window, screen).await,
        BundleCommand::ResetSerial => {
            let applied: BundleDocument = client.post_json("/limpet/v1/bundle/reset-serial", &()).await?;
            screen.print(&format!("the next bundle may have any serial; {} runs until then\n", title(&applied)))?;
            Ok(0)
        }
        BundleCommand::NodeKey => {
            let key: NodeKeyDocument = client.get_json("/limpet/v1/bundle/node-key").await?;
            screen.print(&key.public_key)?;
            Ok(0)
        }
    }
}

fn create(args: CreateArgs, screen: Screen) -> Result<u8, CliError> {
    let now = u64::try_from(Timestamp::now().as_second()).unwrap_or_default();
    let key = SecretKey::read(&args.key).map_err(|error| failed(&error))?;
    let nodes = args.seal_to.iter().map(|path| NodePublicKey::read(path)).collect::<Result<Vec<_>, _>>();
    let mut nodes = nodes.map_err(|error| failed(&error))?;
    let mut known = HashSet::new();
    nodes.retain(|node| known.insert(node.id()));
    let mut manifests = Vec::new();
    for path in args.filename.iter().flat_map(|path| files_of_kubectl(path)) {
        let text =
            read(&path).map_err(|source| CliError::System { what: format!("read {}", path.display()), source })?;
        if text.len() as u64 > MAX_BYTES {
            return Err(CliError::Target(format!("{} is larger than {} MiB", path.display(), MAX_BYTES >> 20)));
        }
        manifests.push((path, text));
    }
    let recipe = Recipe {
        name: &args.name,
        version: &args.version,
        serial: args.serial.unwrap_or(now),
        rollout: args.rollout.filter(|percent| *percent < 100),
        manifests,
        images: &args.image,
        from: args.from.as_deref(),
        seal_to: &nodes,
        key: &key,
    };
    let created = create::create(&recipe, &args.output).map_err(|error| failed(&error))?;
    for warning in &created.warnings {
        screen.remark(&format!("warning: {warning}"))?;
    }
    for image in &created.unused {
        screen.remark(&format!("no pod uses {image}"))?;
    }
    match (nodes.len(), created.sealed) {
        (0, _) => {}
        (_, 0) => screen.remark("there is no Secret to seal")?,
        (nodes, secrets) => screen.remark(&format!("Secrets sealed: {secrets}, to {nodes} nodes"))?,
    }
    screen.print(&summary(&created, &args.output))?;
    Ok(0)
}

fn summary(created: &Created, out: &Path) -> String {
    let Created { config, documents, layers, left_out, size, .. } = created;
    let rest = match left_out.is_empty() {
        true => String::new(),
        false => {
            let bytes = byte_size::text(left_out.values().sum());
            format!("; {} layers of {bytes} are left out, which the nodes must have", left_out.len())
        }
    };
    format!(
        "bundle {} {} serial {} written to {}, {}: {documents} documents, {} images, {} layers{rest}\n",
        printable(&config.name),
        printable(&config.version),
        config.serial,
        out.display(),
        byte_size::text(*size),
        config.images.len(),
        layers.len(),
    )
}

fn show(file: &Path, keys: &[PathBuf], output: Option<DocumentFormat>, screen: Screen) -> Result<u8, CliError> {
    let opened = match keys {
        [] => Bundle::open_unchecked(file),
        keys => public_keys(keys).and_then(|keys| Bundle::open(file, file, &keys, u64::MAX)),
    };
    let report = opened.and_then(|bundle| inspect::report(&bundle)).map_err(|error| failed(&error))?;
    let text = match output {
        Some(format) => format.render(&report)?,
        None => inspect::page(&report),
    };
    screen.print(&text)?;
    Ok(0)
}

fn verify(file: &Path, keys: Vec<PathBuf>, screen: Screen) -> Result<u8, CliError> {
    let keys = if keys.is_empty() { vec![PathBuf::from(DEFAULT_KEY)] } else { keys };
    let opened = public_keys(&keys).and_then(|keys| Bundle::open(file, file, &keys, u64::MAX));
    // Also that its images are what it says.
    let bundle = opened.and_then(|bundle| bundle.images().map(|_| bundle)).map_err(|error| failed(&error))?;
    let key = bundle.key.as_deref().unwrap_or(Path::new(DEFAULT_KEY));
    let (name, version) = (printable(&bundle.config.name), printable(&bundle.config.version));
    let serial = bundle.config.serial;
    screen.print(&format!("bundle {name} {version} serial {serial} is whole and signed with {}\n", key.display()))?;
    Ok(0)
}

async fn apply(client: &SocketClient, file: &Path, in_window: bool, screen: Screen) -> Result<u8, CliError> {
    let opened = tokio::fs::File::open(file).await;
    let opened = opened.map_err(|source| CliError::System { what: format!("read {}", file.display()), source })?;
    let name: String = form_urlencoded::byte_serialize(file.to_string_lossy().as_bytes()).collect();
    let path = format!("/limpet/v1/bundle/apply?inWindow={in_window}&name={name}");
    let applied: BundleDocument = client.post_file(&path, opened).await?;
    let verb = if applied.changed { "applied" } else { "unchanged" };
    screen.print(&format!("bundle {} {verb}\n", title(&applied)))?;
    for image in &applied.images {
        screen.remark(&format!("image {image} imported"))?;
    }
    Ok(0)
}

/// Parses a share of the nodes, such as `10%` or `10`.
fn percent(text: &str) -> Result<u8, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim().parse().ok();
    number.filter(|percent| (0..=100).contains(percent)).ok_or_else(|| "a percentage is 0% to 100%".to_owned())
}

fn title(bundle: &BundleDocument) -> String {
    format!("{} {} serial {}", printable(&bundle.name), printable(&bundle.version), bundle.serial)
}

fn public_keys(paths: &[PathBuf]) -> Result<PublicKeys, BundleError> {
    Ok(PublicKeys::read(paths)?)
}

fn failed(error: &impl std::fmt::Display) -> CliError {
    CliError::Target(error.to_string())
}
