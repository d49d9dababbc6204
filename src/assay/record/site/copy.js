// Copies the command; where the clipboard is closed, selects it so that one keystroke is left.
(() => {
  const button = document.querySelector(".copy");
  const command = document.getElementById("the-command");
  const said = document.getElementById("copied");
  button.addEventListener("click", async () => {
    let word = "Copied";
    try {
      await navigator.clipboard.writeText(command.textContent);
    } catch {
      getSelection().selectAllChildren(command);
      word = "Selected";
    }
    button.textContent = said.textContent = word;
    setTimeout(() => {
      button.textContent = "Copy";
      said.textContent = "";
    }, 2000);
  });
})();
