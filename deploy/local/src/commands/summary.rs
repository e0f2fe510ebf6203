//! What a person needs who sees an installation for the first time.

use domain::Secret;

use crate::installation::Installation;
use crate::models::Models;
use crate::ports::Ports;
use crate::setup::{PROJECT, QUESTION};
use crate::state_dir::StateDir;

/// Addresses, keys, and lines to try it with.
pub(crate) fn text(dir: &StateDir, ports: Ports, installation: &Installation, models: Models, store: i64) -> String {
    let (edge, admin) = (format!("http://{}", ports.edge()), format!("http://{}", ports.admin()));
    let key = installation.project_key.as_ref().map_or("YOUR_KEY", Secret::expose);
    let (user, password) = (&installation.admin_user, installation.admin_password.expose());
    let model = models.chat(ports, None).model;
    let question = format!("\"messages\":[{{\"role\":\"user\",\"content\":\"{QUESTION}\"}}]");
    let call = format!(
        "{edge}/v1/chat/completions \\\n    -H 'authorization: Bearer {key}' -H 'content-type: application/json' \\\n    "
    );
    [
        String::new(),
        format!("  OpenAI API   {edge}/v1"),
        format!("  project key  {key}  (project {PROJECT}, model {model})"),
        format!("  admin API    {admin}/admin/api"),
        format!("  admin login  {user}, password {password}"),
        String::new(),
        "A streamed answer, word by word:".to_owned(),
        String::new(),
        format!("  curl -N {call}-d '{{\"model\":\"{model}\",\"stream\":true,{question}}}'"),
        String::new(),
        "The same in one piece, with the headers that name file and page:".to_owned(),
        String::new(),
        format!("  curl -i {call}-d '{{\"model\":\"{model}\",{question}}}'"),
        String::new(),
        "A document of yours:".to_owned(),
        String::new(),
        format!(
            "  TOKEN=$(curl -s {admin}/admin/api/login -H 'content-type: application/json' \\\n    -d \
             '{{\"username\":\"{user}\",\"password\":\"{password}\",\"bearer\":true}}' | sed \
             's/.*\"token\":\"\\([^\"]*\\)\".*/\\1/')"
        ),
        format!(
            "  curl -H \"authorization: Bearer $TOKEN\" -F file=@README.md {admin}/admin/api/rag-stores/{store}/documents"
        ),
        String::new(),
        format!("Ctrl-C stops everything; the data stays in {}.", dir.path().display()),
    ]
    .join("\n")
}
