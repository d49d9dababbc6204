// A comparison: the form becomes a question, the answer comes in parts; the view's state lives in the address.
(async () => {
  const desk = document.querySelector(".desk");
  if (!desk) return;
  const name = desk.dataset.name;
  const live = name === "serving"; // warm and quick enough to answer every move of a slider
  const form = desk.querySelector(".ask");
  const code = document.getElementById("code");
  const [result, told, wait] = [desk.querySelector(".result"), desk.querySelector(".told"), desk.querySelector(".wait")];
  const [answer, charts, same] = [desk.querySelector(".answer"), desk.querySelector(".charts"), desk.querySelector(".same")];
  const SECONDS = { ttft: (k) => 0.1 * 1.4 ** k, tpot: (k) => 0.01 * 1.2 ** k };
  let [job, again, began, withCode, whole] = [null, false, 0, false, false];

  try {
    const part = await fetch(`/api/comparisons/${name}`);
    if (!part.ok) throw new Error((await part.json()).error);
    form.innerHTML = await part.text(); // our own template, escaped by it
  } catch (error) {
    form.replaceChildren(bench.made("p", error.message, { class: "pending", role: "alert" }));
    return;
  }
  const [go, stop] = [form.querySelector(".go"), form.querySelector(".stop")];
  const fields = [...form.querySelectorAll(".field")];

  // ---- fields: each knows its values as the command line has them
  const chosen = (field) => [...field.querySelectorAll(".dropped li")].map((item) => item.dataset.value);
  function values(field) {
    const { kind } = field.dataset;
    if (kind === "several") return [[...field.querySelectorAll(":checked")].map((box) => box.value).join(",")];
    if (kind === "flag") return field.querySelector(".value").checked ? ["1"] : [];
    if (kind === "file" || kind === "trace") {
      const files = chosen(field);
      return files.length || kind === "file" ? files : [field.querySelector(".made").value];
    }
    return [field.querySelector(".value").dataset.file ?? field.querySelector(".value").value.trim()];
  }
  const question = () => Object.fromEntries(fields.map((field) => [field.dataset.name, values(field).filter(Boolean)])
    .filter(([at, found]) => found.length && found.join("\n") !== fields.find((f) => f.dataset.name === at).dataset.default));

  function put(field, given) {
    const { kind } = field.dataset;
    const [files, plain] = [given.filter((v) => v.startsWith("file:")), given.filter((v) => !v.startsWith("file:"))];
    if (kind === "file" || kind === "trace") {
      for (const file of files) keep(field, file, file.split("/").pop());
      if (plain.length && kind === "trace") field.querySelector(".made").value = plain[0];
    } else if (kind === "several") {
      const wanted = (given[0] ?? "").split(",");
      for (const box of field.querySelectorAll("input")) box.checked = wanted.includes(box.value);
    } else if (kind === "flag") field.querySelector(".value").checked = true;
    else {
      const input = field.querySelector(".value");
      input.value = files[0]?.split("/").pop() ?? given[0];
      if (files.length) {
        input.dataset.file = files[0];
        field.querySelector(".away")?.remove();
        const away = bench.made("button", "×", { type: "button", class: "away", "aria-label": `Leave out ${input.value}` });
        away.addEventListener("click", () => (typed(input), (input.value = ""), changed()));
        input.after(away);
      }
      slide(field);
    }
  }

  // What is typed stands for itself, and no more for a file.
  function typed(input) {
    delete input.dataset.file;
    input.closest(".field").querySelector(".away")?.remove();
  }

  function keep(field, value, label) {
    const list = field.querySelector(".dropped");
    if (!field.querySelector("[data-multiple]")) list.replaceChildren();
    const item = bench.made("li", label);
    item.dataset.value = value;
    const away = bench.made("button", "×", { type: "button", "aria-label": `Leave out ${label}` });
    away.addEventListener("click", () => (item.remove(), changed()));
    item.append(away);
    list.append(item);
  }

  async function upload(field, files) {
    for (const file of files) {
      told.textContent = `taking in ${file.name} …`;
      try {
        const sent = await fetch(`/api/files?name=${encodeURIComponent(file.name)}`, { method: "POST", body: file,
          headers: { "content-type": "application/octet-stream" } });
        const got = await sent.json();
        if (!sent.ok) throw new Error(got.error);
        if (field.querySelector(".dropped")) {
          if (file === files[0]) field.querySelector(".dropped").replaceChildren(); // what is dropped takes the place of what was
          keep(field, `file:${got.file}`, file.name);
        } else put(field, [`file:${got.file}`]);
        told.textContent = `${file.name} is here.`;
      } catch (error) {
        told.textContent = `${file.name}: ${error instanceof TypeError ? "it was refused: too large?" : error.message}`;
        return;
      }
    }
    changed();
    if (live) compare();
  }

  // ---- sliders write the text that the command line takes; text that is typed moves them
  function slide(field) {
    const text = field.querySelector(".value")?.value ?? "";
    const part = (which) => field.querySelector(`[data-part=${which}]`);
    if (field.dataset.kind === "rate") {
      const found = /^x([\d.]+)$/.exec(text);
      if (found) part("rate").value = Math.log2(Number(found[1]));
      part("rate").nextElementSibling.value = found ? `× ${found[1]}` : text;
    } else if (field.dataset.kind === "fleet") {
      const found = /^(\d+)x([^:+]+):([^:+]+)$/.exec(text);
      if (found) for (const [i, which] of ["count", "gpu", "model"].entries()) part(which).value = found[i + 1];
      part("count").nextElementSibling.value = found ? `${found[1]} instances` : "as written";
    } else if (field.dataset.kind === "slo") {
      for (const which of ["ttft", "tpot"]) {
        const found = new RegExp(`${which}=([\\d.]+)`).exec(text);
        const [base, step] = which === "ttft" ? [0.1, 1.4] : [0.01, 1.2];
        part(which).value = found ? Math.round(Math.log(Number(found[1]) / base) / Math.log(step)) : -1;
        part(which).nextElementSibling.value = found ? `${which} ≤ ${found[1]} s` : `${which}: no target`;
      }
    }
  }

  function slid(field) {
    const part = (which) => field.querySelector(`[data-part=${which}]`).value;
    const input = field.querySelector(".value");
    if (field.dataset.kind === "rate") input.value = `x${Number((2 ** Number(part("rate"))).toPrecision(3))}`;
    else if (field.dataset.kind === "fleet") input.value = `${part("count")}x${part("gpu")}:${part("model")}`;
    else if (field.dataset.kind === "slo") {
      input.value = ["ttft", "tpot"].filter((which) => Number(part(which)) >= 0)
        .map((which) => `${which}=${Number(SECONDS[which](Number(part(which))).toPrecision(2))}`).join(",");
    }
    slide(field);
  }

  // ---- asking
  function changed() {
    const state = new URLSearchParams();
    for (const [field, found] of Object.entries(question())) for (const value of found) state.append(field, value);
    history.replaceState(null, "", location.pathname + (state.size ? `?${state}` : ""));
  }

  async function compare(word = "comparing …") {
    if (job) {
      again = true; // one question at a time; of those that wait only the last counts
      return;
    }
    job = "asked";
    began = performance.now();
    result.setAttribute("aria-busy", "true");
    told.textContent = word;
    told.classList.remove("bad");
    stop.hidden = false;
    try {
      const asked = await bench.ask("/api/comparisons", { name, options: question(), whole, ...(withCode ? { code: code.value } : {}) });
      whole = false;
      job = asked.id;
      same.hidden = false;
      same.querySelector("code").textContent = asked.command;
      bench.follow(job, (event) => heard(event, asked));
      bench.list();
    } catch (error) {
      end("failed", error.message);
      bench.list(); // who has the places, and can be cancelled
    }
  }

  const seconds = () => `${Number(((performance.now() - began) / 1000).toPrecision(2))} s`;
  function heard(event, asked) {
    if (event.event === "progress") bench.measured(wait, event);
    else if (event.event === "away") told.textContent = event.message;
    else if (event.event === "lost") {
      job = null;
      compare("the workbench was started anew: comparing again …");
    } else if (event.event === "table") {
      answer.innerHTML = event.html; // our own templates, escaped by them
      told.textContent = `answered in ${seconds()}`;
      told.dataset.seconds = (performance.now() - began) / 1000;
      told.dataset.answers = Number(told.dataset.answers ?? 0) + 1;
    } else if (event.event === "charts") {
      charts.innerHTML = event.html;
      if (live && !charts.querySelector("img")) {
        const more = bench.made("button", "Draw load and memory over time", { type: "button", class: "pick more" });
        more.addEventListener("click", () => ((whole = true), more.remove(), compare()));
        charts.append(more);
      }
      const link = (file, text) => bench.made("a", text, { href: `/api/jobs/${asked.id}/take/${file}`, download: `${name}-${file}` });
      same.querySelector(".take").replaceChildren(link("page.html", "One HTML file"), link("table.csv", "Table as CSV"),
        link("table.json", "as JSON"), link("answer.json", "Everything as JSON"));
    } else if (event.event === "end") end(event.state, event.message);
  }

  function end(state, message) {
    job = null;
    wait.hidden = true;
    stop.hidden = true;
    result.setAttribute("aria-busy", "false");
    if (state !== "done") {
      told.textContent = message || "cancelled";
      told.classList.add("bad");
      withCode = false;
      for (const old of [answer, charts]) old.replaceChildren(); // they answered another question
      same.hidden = true;
    }
    if (again) {
      again = false;
      compare();
    }
  }

  // ---- events
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    withCode = false;
    compare();
  });
  form.addEventListener("input", (event) => {
    const field = event.target.closest(".field");
    if (event.target.type === "file") return;
    if (event.target.dataset.part) slid(field);
    else if (event.target.classList.contains("value")) {
      typed(event.target);
      slide(field);
    }
    changed();
    if (live && (event.target.dataset.part || event.target.type === "checkbox")) compare();
  });
  form.addEventListener("change", (event) => {
    if (event.target.type === "file") {
      const files = [...event.target.files];
      event.target.value = ""; // the same file may be chosen again once it was mended
      upload(event.target.closest(".field"), files);
    } else if (live && !event.target.dataset.part && event.target.type !== "checkbox") compare();
  });
  stop.addEventListener("click", () => job && bench.ask(`/api/jobs/${job}`, undefined, "DELETE").catch(() => {}));
  desk.querySelector(".try")?.addEventListener("click", () => {
    withCode = true;
    compare();
  });
  code?.addEventListener("keydown", (event) => {
    if (event.key === "Tab" && !event.shiftKey && code.selectionStart !== code.selectionEnd) return;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) desk.querySelector(".try").click();
  });
  for (const [kind, over] of [["dragover", true], ["dragleave", false], ["drop", false]]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      const zone = event.target.closest?.(".field:has(.drop)") ?? fields.find((field) => field.querySelector(".drop"));
      zone?.querySelector(".drop").classList.toggle("over", over);
      if (kind === "drop" && zone && event.dataTransfer.files.length) upload(zone, [...event.dataTransfer.files]);
    });
  }

  const state = new URLSearchParams(location.search);
  for (const field of fields) {
    const given = state.getAll(field.dataset.name);
    if (given.length) put(field, given);
    else slide(field);
  }
  // A link of another page fills the form and asks nothing.
  if ("asks" in desk.dataset) {
    if (live || state.size) compare();
  } else told.textContent = "Another page led here: look at the question, then press Compare.";
})();
