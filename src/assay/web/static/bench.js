// What every view has: copying a command, talking to the server, following a job, and what runs elsewhere.
const bench = (() => {
  async function ask(path, body, method = body === undefined ? "GET" : "POST") {
    const options = { method, cache: "no-store" };
    if (body !== undefined) {
      options.headers = { "content-type": "application/json" };
      options.body = JSON.stringify(body);
    }
    let answer;
    try {
      answer = await fetch(path, options);
    } catch {
      throw new Error("the workbench does not answer; is 'assay web' still running?");
    }
    const told = await answer.json().catch(() => ({ error: `the workbench answered ${answer.status}` }));
    if (!answer.ok) throw new Error(told.error ?? `the workbench answered ${answer.status}`);
    return told;
  }

  // Calls `heard` with every event of a job, to its end; the browser itself takes up a line that was cut.
  function follow(id, heard) {
    const source = new EventSource(`/api/jobs/${id}/events`);
    source.onmessage = (message) => {
      const event = JSON.parse(message.data);
      if (event.event === "end") source.close();
      heard(event);
    };
    return source;
  }

  // Puts parts of a freshly fetched page in the place of those shown: results appear without a reload.
  async function renew(selectors) {
    const answer = await fetch(location.href, { cache: "no-store" });
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const selector of selectors) {
      const [old, now] = [document.querySelectorAll(selector), fresh.querySelectorAll(selector)];
      for (const [i, part] of [...old].entries()) now[i] ? part.replaceWith(document.importNode(now[i], true)) : part.remove();
      if (now.length > old.length && old.length === 0) return false;
    }
    return true;
  }

  function made(tag, text, attributes = {}) {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text; // as text: policies and traces choose some of it
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest(".copy");
    if (!button) return;
    const code = button.parentElement.querySelector("code");
    let word = "Copied";
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code); // one keystroke is left
      word = "Selected";
    }
    button.textContent = word;
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });

  // Jobs that run, wherever they were begun: another page or another browser sees them, too.
  const line = document.querySelector(".running");
  let known = "";
  async function look() {
    if (document.visibilityState === "visible") {
      const jobs = (await ask("/api/jobs").catch(() => [])).filter((job) => job.state === "running" && job.kind === "run");
      const now = jobs.map((job) => job.id).join();
      if (now !== known) {
        known = now;
        line.hidden = !jobs.length;
        line.replaceChildren(jobs.length ? "Running: " : "", ...jobs.flatMap((job, i) => [i ? ", " : "", made("a", job.name, { href: `/papers/${job.name}.html` })]));
        document.dispatchEvent(new CustomEvent("jobs", { detail: jobs }));
      }
    }
    setTimeout(look, 4000);
  }
  look();
  return { ask, follow, renew, made };
})();
