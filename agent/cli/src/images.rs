//! `limpet images`: the node's images, and what is done with them by hand.

mod pull;
mod verify;

use std::path::PathBuf;

use jiff::Timestamp;

use super::age;
use super::error::CliError;
use super::screen::{Screen, Tone};
use super::table::{Cell, Table};
use crate::output::DocumentFormat;
use limpet_core::byte_size;
use limpet_wire::images::{ImageDiskDocument, ImageDocument, ImageNames, ImageRequest};
use limpet_wire::socket_client::SocketClient;

/// Arguments of `limpet images`.
#[derive(Debug, clap::Args)]
pub struct ImagesArgs {
    #[command(subcommand)]
    command: Option<ImagesCommand>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, Default, clap::Args)]
struct ListArgs {
    /// Output format
    #[arg(short, long)]
    output: Option<ImagesFormat>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ImagesFormat {
    /// JSON, indented
    Json,
    /// YAML
    Yaml,
    /// One name per line
    Name,
}

#[derive(Debug, clap::Subcommand)]
enum ImagesCommand {
    /// List the images of this node, and the pods that need them
    Ls(ListArgs),
    /// Pull an image with the node's credentials, whether it is here or not, and show how far it is
    Pull {
        /// As in a Pod
        image: String,
    },
    /// Import an image archive (docker save or OCI layout, also .gz and .zst)
    Import {
        /// The archive
        file: PathBuf,
    },
    /// Keep an image, whether a pod needs it or not
    Pin {
        /// As in a Pod
        image: String,
    },
    /// Keep an image no longer than pods need it
    Unpin {
        /// As in a Pod
        image: String,
    },
    /// Show whether an image may be used: the verdict of imagePolicy with each key, and that of containerd's image
    /// verifiers. Exits with 1 when it may not
    Verify {
        /// As in a Pod
        image: String,
        /// Output format
        #[arg(short, long)]
        output: Option<DocumentFormat>,
    },
    /// Remove every image that no pod and no container needs and that is not pinned
    Prune,
    /// Show how full the disk of images is
    Df {
        /// Output format
        #[arg(short, long)]
        output: Option<DocumentFormat>,
    },
}

pub(super) async fn run(client: &SocketClient, args: ImagesArgs, screen: Screen) -> Result<u8, CliError> {
    let post = async |path: &str, image: String, pinned: bool| {
        let request = ImageRequest { image, pinned };
        client.post_json::<ImageNames>(&format!("/limpet/v1/images/{path}"), &request).await
    };
    let lines = |images: &[String], what: &str| images.iter().map(|image| format!("image {image} {what}\n")).collect();
    let text: String = match args.command.unwrap_or(ImagesCommand::Ls(args.list)) {
        ImagesCommand::Ls(list) => {
            let images: Vec<ImageDocument> = client.get_json("/limpet/v1/images").await?;
            listing(&images, list.output, &screen)?
        }
        ImagesCommand::Pull { image } => lines(&pull::run(client, image, screen).await?.images, "pulled"),
        ImagesCommand::Import { file } => {
            let path = std::path::absolute(file)?.to_string_lossy().into_owned();
            lines(&post("import", path, false).await?.images, "imported")
        }
        ImagesCommand::Pin { image } => lines(&post("pin", image, true).await?.images, "pinned"),
        ImagesCommand::Unpin { image } => lines(&post("pin", image, false).await?.images, "unpinned"),
        ImagesCommand::Verify { image, output } => return verify::run(client, image, output, &screen).await,
        ImagesCommand::Prune => {
            let removed = post("prune", String::new(), false).await?.images;
            if removed.is_empty() {
                screen.remark("nothing to remove: every image is needed or pinned")?;
            }
            lines(&removed, "removed")
        }
        ImagesCommand::Df { output } => {
            let disk: ImageDiskDocument = client.get_json("/limpet/v1/images/disk").await?;
            match output {
                Some(format) => format.render(&disk)?,
                None => usage(&disk, &screen),
            }
        }
    };
    screen.print(&text)?;
    Ok(0)
}

fn listing(images: &[ImageDocument], format: Option<ImagesFormat>, screen: &Screen) -> Result<String, CliError> {
    match format {
        Some(ImagesFormat::Json) => DocumentFormat::Json.render(&images),
        Some(ImagesFormat::Yaml) => DocumentFormat::Yaml.render(&images),
        Some(ImagesFormat::Name) => Ok(images.iter().map(|image| format!("{}\n", name(image))).collect()),
        None => Ok(table(images, screen, Timestamp::now())),
    }
}

fn table(images: &[ImageDocument], screen: &Screen, now: Timestamp) -> String {
    let rows: Vec<Vec<Cell>> = images.iter().map(|image| row(image, now)).collect();
    Table::new(vec!["IMAGE", "DIGEST", "SIZE", "LAST USED", "PINNED", "PODS"]).render(screen, &rows)
}

fn row(image: &ImageDocument, now: Timestamp) -> Vec<Cell> {
    let last_used = match (&image.last_used, image.in_use || !image.pods.is_empty()) {
        (_, true) => Cell::toned("needed", Tone::Good),
        (Some(at), false) => Cell::from(age::since(at.0, now)),
        (None, false) => Cell::from("never"),
    };
    let digest = image.digest.get("sha256:".len()..).and_then(|hex| hex.get(..12)).unwrap_or(&image.digest);
    vec![
        Cell::from(name(image)),
        Cell::from(digest),
        Cell::from(image.size.map_or_else(|| "incomplete".to_owned(), byte_size::text)),
        last_used,
        Cell::from(if image.pinned { "yes" } else { "no" }),
        Cell::from(image.pods.join(",")),
    ]
}

/// The image's first name, or its digest if it has none.
fn name(image: &ImageDocument) -> &str {
    image.names.first().unwrap_or(&image.digest)
}

fn usage(disk: &ImageDiskDocument, screen: &Screen) -> String {
    let used = disk.capacity.saturating_sub(disk.available);
    let row = vec![
        Cell::from(disk.directory.display().to_string()),
        Cell::from(byte_size::text(disk.capacity)),
        Cell::from(byte_size::text(used)),
        Cell::from(byte_size::text(disk.available)),
        Cell::from(format!("{}%", disk.used_percent)),
    ];
    Table::new(vec!["DIRECTORY", "SIZE", "USED", "AVAILABLE", "USE"]).render(screen, &[row])
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    #[test]
    fn images_are_shown_with_who_needs_them() {
        let image = |names: &[&str], pods: &[&str]| ImageDocument {
            names: names.iter().map(ToString::to_string).collect(),
            digest: format!("sha256:{}", "0123456789abcdef".repeat(4)),
            size: Some(10_519_364),
            pinned: false,
            created: None,
            last_used: Some(Time(Timestamp::UNIX_EPOCH)),
            in_use: false,
            pods: pods.iter().map(ToString::to_string).collect(),
        };
        let images = [
            image(&["docker.io/library/web:1", "web:one"], &["default/a-edge1", "default/b-edge1"]),
            ImageDocument { pinned: true, ..image(&["old:1"], &[]) },
            ImageDocument { last_used: None, size: None, ..image(&[], &[]) },
        ];
        let screen = Screen { color: false, quiet: false };
        let long = format!("sha256:{}", "0123456789abcdef".repeat(4));
        let lines: Vec<Vec<String>> = table(&images, &screen, Timestamp::constant(3_600, 0))
            .lines()
            .map(|line| line.split("   ").map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect())
            .collect();
        let wanted = [
            vec!["IMAGE", "DIGEST", "SIZE", "LAST USED", "PINNED", "PODS"],
            vec![
                "docker.io/library/web:1",
                "0123456789ab",
                "10.0 MiB",
                "needed",
                "no",
                "default/a-edge1,default/b-edge1",
            ],
            vec!["old:1", "0123456789ab", "10.0 MiB", "60m", "yes"],
            vec![&long, "0123456789ab", "incomplete", "never", "no"],
        ];
        assert_eq!(lines, wanted);
    }
}
