// Search and filters of the contents. The view's state lives in the address, so that it can be shared.
(() => {
  const form = document.querySelector(".finder");
  const query = document.getElementById("query");
  const shown = document.getElementById("shown");
  const nothing = document.querySelector(".nothing");
  const boxes = [...form.querySelectorAll("input[type=checkbox]")];
  const rooms = [...document.querySelectorAll(".room")];
  const plain = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").replaceAll("’", "'").toLowerCase();
  const entries = [...document.querySelectorAll(".entry")].map((node) => ({
    node,
    room: node.closest(".room").dataset.room,
    verdicts: node.dataset.verdict.split("|"),
    // A space between the parts: a word must not be found across two of them.
    text: plain([...node.querySelectorAll("h3, p:not(.chips)")].map((part) => part.textContent).join(" ")),
  }));
  const ours = (hash) => /^#(q|room|verdict)=/.test(hash);
  const chosen = (name) => boxes.filter((box) => box.name === name && box.checked).map((box) => box.value);

  function apply() {
    const words = plain(query.value).split(/\s+/).filter(Boolean);
    const [inRooms, inVerdicts] = [chosen("room"), chosen("verdict")];
    let count = 0;
    for (const entry of entries) {
      const fits =
        (!inRooms.length || inRooms.includes(entry.room)) &&
        (!inVerdicts.length || inVerdicts.some((verdict) => entry.verdicts.includes(verdict))) &&
        words.every((word) => entry.text.includes(word));
      entry.node.hidden = !fits;
      count += fits;
    }
    for (const room of rooms) {
      const all = room.querySelectorAll(".entry").length;
      const some = room.querySelectorAll(".entry:not([hidden])").length;
      room.hidden = !some;
      room.querySelector(".some").textContent = some === all ? all : `${some} of ${all}`;
    }
    const filtered = words.length || inRooms.length || inVerdicts.length;
    shown.textContent = filtered ? `${count} of ${entries.length} papers` : `All ${entries.length} papers`;
    form.querySelector(".clear").hidden = !filtered;
    nothing.hidden = count > 0 || !entries.length;
    remember(inRooms, inVerdicts);
  }

  function remember(inRooms, inVerdicts) {
    const state = new URLSearchParams();
    if (query.value.trim()) state.set("q", query.value.trim());
    if (inRooms.length) state.set("room", inRooms.join(","));
    if (inVerdicts.length) state.set("verdict", inVerdicts.join(","));
    const hash = state.toString().replaceAll("%2C", ",");
    // An anchor such as #main is not ours to wipe while there is nothing to remember.
    if (!hash && !ours(location.hash)) return;
    try {
      history.replaceState(null, "", location.href.split("#")[0] + (hash ? `#${hash}` : ""));
    } catch {
      location.hash = hash; // some browsers lock the history of pages from disk
    }
  }

  function recall() {
    const state = new URLSearchParams(ours(location.hash) ? location.hash.slice(1) : "");
    query.value = state.get("q") ?? "";
    for (const box of boxes) box.checked = (state.get(box.name) ?? "").split(",").includes(box.value);
    apply();
  }

  function clear() {
    query.value = "";
    for (const box of boxes) box.checked = false;
    apply();
    query.focus();
  }

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", apply);
  for (const button of document.querySelectorAll(".clear")) button.addEventListener("click", clear);
  addEventListener("hashchange", () => ours(location.hash) && recall());
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.matches?.("input[type=search], textarea, [contenteditable]");
    if (event.key === "/" && !typing) {
      event.preventDefault();
      query.focus();
      query.select();
    } else if (event.key === "Escape" && typing) {
      event.preventDefault(); // the browser's own clearing differs from one to the next
      if (query.value) {
        query.value = "";
        apply();
      } else query.blur();
    }
  });
  for (const box of boxes) box.disabled = false;
  recall();
})();
